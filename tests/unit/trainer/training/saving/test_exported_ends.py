"""An exported model knows what its job knew: it ends its turns by itself, in Transformers and in vLLM, and pads with no
end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.support.servers.vllm_server import ENVIRONMENT
from tests.support.tiny.models import CHATML, byte_tokenizer
from tests.unit.trainer.graph.specs import spec_of
from tests.unit.trainer.training.tuned import SHAPE, TALK, base_model, fine_tuned
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from rlhf_trainer.data.encode import end_tokens
from rlhf_trainer.export.model_files import write_files
from rlhf_trainer.models.pretrained.create import create_policy
from rlhf_trainer.models.pretrained.load import load_reward, padding_id
from rlhf_trainer.scoring.rewards import forward_scores
from rlhf_trainer.tensors.records import Sequences

LIMIT = 24


def rendered_prompts(folder: Path) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    questions = ([{"role": "user", "content": question}] for question in TALK)
    return [tokenizer.apply_chat_template(q, tokenize=False, add_generation_prompt=True) for q in questions]


def by_transformers(model, folder: Path) -> list[str]:
    """Answers to the questions with the model's own defaults, greedy, each generated alone."""
    tokenizer, answers = AutoTokenizer.from_pretrained(folder), []
    for prompt in rendered_prompts(folder):
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=LIMIT, do_sample=False)[0, ids.input_ids.shape[1] :]
        answers.append(tokenizer.decode(out))
    return answers


def by_vllm(folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.trainer.training.saving.vllm_responses"],
        input=json.dumps([str(folder), rendered_prompts(folder), LIMIT]),
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def exported(folder: Path, *overrides: str) -> tuple[Path, Path]:
    """The work directory of a base model's fine-tuning on conversations until it has learned them, and its start."""
    base = base_model(folder / "base")
    ctx, task = fine_tuned(folder, base, 60, *overrides)
    task.export(60)
    return ctx.workdir, base


TURNS = [f"{answer}<|im_end|>" for answer in TALK.values()]


@pytest.mark.slow
def test_a_base_model_tuned_on_conversations_ends_its_turns_wherever_it_is_loaded(tmp_path, forked_programs):  # noqa: ARG001
    run, base = exported(tmp_path)
    policy = AutoModelForCausalLM.from_pretrained(run / "policy")
    assert by_transformers(policy, run / "policy") == TURNS
    # vLLM leaves the token that ended a response out of its text.
    assert by_vllm(run / "policy") == [f"{answer} stop" for answer in TALK.values()]
    assert AutoTokenizer.from_pretrained(run / "policy").chat_template == CHATML
    ends = [256, AutoTokenizer.from_pretrained(base).convert_tokens_to_ids("<|im_end|>")]
    for name in ("config", "generation_config"):
        assert json.loads((run / "policy" / f"{name}.json").read_text())["eos_token_id"] == ends
    card = (run / "policy" / "README.md").read_text()
    assert "A response ends with `<eos>` or `<|im_end|>`." in card


def test_an_adapter_alone_has_the_ends_and_the_template_beside_it(tmp_path):
    from peft import PeftModel

    run, base = exported(tmp_path, "spec.model.lora={policy: {rank: 32}}", "spec.optimizer.learningRate=0.02")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), run / "policy-adapter")
    model.generation_config = GenerationConfig.from_pretrained(run / "policy-adapter")
    answers = by_transformers(model, run / "policy-adapter")
    assert all(answer.count("<|im_end|>") == 1 and answer.endswith("<|im_end|>") for answer in answers)
    merged = AutoModelForCausalLM.from_pretrained(run / "policy")
    assert by_transformers(merged, run / "policy") == answers


@pytest.mark.parametrize(
    ("own", "config", "saved"),
    [(None, None, None), ("<eos>", 256, None), ("<pad>", None, 257), ("<pad>", 256, 257), (None, 7, 7)],
)
def test_padding_is_no_end_and_is_not_invented(own, config, saved, tmp_path):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer().backend_tokenizer, eos_token="<eos>", pad_token=own
    )
    model = create_policy("llama", SHAPE, byte_tokenizer(), 0)
    for each in (model.config, model.generation_config):
        each.pad_token_id = config
    ends = end_tokens(tokenizer, model.generation_config, spec_of("sft").sampling)
    write_files(model, tokenizer, tmp_path, ends, model.state_dict())
    assert AutoTokenizer.from_pretrained(tmp_path).pad_token_id == (
        None if own == "<eos>" else tokenizer.pad_token_id
    )
    opened = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (opened.config.pad_token_id, opened.generation_config.pad_token_id) == (saved, saved)
    assert model.config.pad_token_id == config, "the model that trains on stays as it was"


def test_transformers_scores_the_end_of_a_response_as_the_job_does(tmp_path):
    """With the end as padding, it would score the token before the end."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer().backend_tokenizer, eos_token="<eos>"
    )
    create_policy("llama", SHAPE, byte_tokenizer(), 0).save_pretrained(tmp_path / "start")
    model = load_reward(str(tmp_path / "start"), torch.float32).eval()
    model.config.pad_token_id = None
    rows = [(65, 66, 256), (70, 71, 72, 73, 256)]
    scores = forward_scores(model, 64, padding_id(tokenizer))
    expected = scores(Sequences.pack([(row[:1], row[1:]) for row in rows]))
    write_files(model, tokenizer, tmp_path / "reward", (), model.state_dict())
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward")
    logits = [opened(torch.tensor([row])).logits.item() for row in rows]
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="no padding token is defined"):
        opened(torch.tensor([rows[0], rows[0]]))
