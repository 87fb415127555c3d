"""Trained models as they are saved: a card with the run's figures and its manifest, and the chat example's policy."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from tests.support.tiny.models import CHATML, chat_tokenizer
from tests.unit.trainer.training.running import Job
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rlhf_api.contract.run import RunConfig
from rlhf_api.graph import CRITIC
from rlhf_api.manifest.load import load, parse
from rlhf_trainer.data.encode import end_tokens
from rlhf_trainer.export.model_files import remove_abandoned, renamed_into_place
from rlhf_trainer.export.saved_job import describe_job
from rlhf_trainer.export.trained_models import export_models, write_card
from rlhf_trainer.models.pretrained.create import create_policy
from rlhf_trainer.models.pretrained.job_models import load_job_tokenizer
from rlhf_trainer.training.assembly import trained_model

STEPS = [{"step": i, "reward_mean": 0.1 * i, "loss": 0.5, "seconds": 1.0} for i in (1, 2, 3)]
JUDGED = [{"step": i, "set": "greedy", "mean": 0.25 * i, "count": 8} for i in (0, 2)]
NAMED = [{"step": i, "set": "named", "mean": 0.5, "a_mean": 0.5, "b_mean": 2.0 * i} for i in (0, 2)]


def test_a_card_says_where_a_model_comes_from_and_what_it_reached(tmp_path):
    overrides = ("spec.model.policy=someone/model", "spec.model.lora={policy: {rank: 4}}")
    job = Job("grpo", "klCoefficient: 0.1", *overrides)
    ctx = replace(job.ctx, workdir=tmp_path)
    for name, rows in (("metrics", STEPS), ("evaluation", [*JUDGED, *NAMED])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "reward.png").write_bytes(b"a picture")
    folder = tmp_path / "policy"
    folder.mkdir()
    write_card(ctx, job.task._graph.trained[0], folder, 40)

    card = (folder / "README.md").read_text()
    _, front, text = card.split("---\n", 2)
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "tags": ["rlhf-operator", "grpo"],
        "base_model": "someone/model",
    }
    assert "Trained by grpo for 40 steps, with a low-rank adapter (rank 4) merged into it." in text
    assert "| reward_mean | 0.1 | 0.3 |" in text
    assert "| greedy | mean | 0 | 0 | 2 | 0.5 |" in text
    assert "| named | a_mean | 0 | 0.5 | 2 | 0.5 |\n| named | b_mean | 0 | 0 | 2 | 4 |" in text
    assert "![job](reward.png)" in text
    assert (folder / "reward.png").read_bytes() == b"a picture"
    (block,) = re.findall(r"```yaml\n(.*?)```", text, flags=re.S)
    assert parse(yaml.safe_load(block)).spec == job.spec


def test_a_card_of_a_run_that_an_earlier_release_began_has_the_metrics_that_were_renamed(tmp_path):
    job = Job("grpo", "klCoefficient: 0.1")
    rows = [{"step": 1, "answer_length_mean": 9.0}, {"step": 2, "response_length_mean": 7.5}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_card(replace(job.ctx, workdir=tmp_path), job.task._graph.trained[0], tmp_path, 2)
    assert "| response_length_mean | 9 | 7.5 |" in (tmp_path / "README.md").read_text()


def test_a_card_and_a_snapshot_have_no_secrets_of_the_manifest(tmp_path):
    """A card is made to be published, and a snapshot has what cards are written from."""
    secret = 'spec.env={"HF_TOKEN": "s3cr3t", "MLFLOW_TRACKING_URI": "https://me:s3cr3t@h", "B": "b"}'
    job = Job("grpo", "klCoefficient: 0.1", secret)
    ctx = replace(job.ctx, workdir=tmp_path)
    write_card(ctx, job.task._graph.trained[0], tmp_path, 40)
    card = (tmp_path / "README.md").read_text()
    assert "s3cr3t" not in card + describe_job(ctx).model_dump_json()
    assert "Values that look like secrets are left out, as `***`" in card
    (block,) = re.findall(r"```yaml\n(.*?)```", card, flags=re.S)
    left = parse(yaml.safe_load(block)).spec.env
    assert left == {"HF_TOKEN": "***", "MLFLOW_TRACKING_URI": "https://me:***@h", "B": "b"}


def test_a_path_of_this_machine_is_no_base_model(tmp_path):
    job = Job("grpo", "", f"spec.model.policy={tmp_path}")
    ctx = replace(job.ctx, workdir=tmp_path)
    write_card(ctx, job.task._graph.trained[0], tmp_path, 40)
    card = (tmp_path / "README.md").read_text()
    assert "base_model" not in card
    assert "| figure |" not in card, "a run without a step has none"


def test_a_policys_generation_config_is_saved_as_it_was(tmp_path):
    """Also one that Transformers reads but refuses to write, as with a temperature and no do_sample."""
    job = Job("grpo", "klCoefficient: 0")
    given = {"eos_token_id": [256, 7], "temperature": 0.6, "top_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    own = GenerationConfig.from_pretrained(tmp_path)
    job.models["policy"].unwrapped.generation_config = own
    export_models(replace(job.ctx, workdir=tmp_path), {job.task._graph.trained[0]: job.models["policy"]}, 40)
    saved = json.loads((tmp_path / "policy" / "generation_config.json").read_text())
    assert given.items() <= saved.items()
    assert job.models["policy"].generation_config is own


@pytest.mark.parametrize(
    ("given", "base"),
    [("{policy: some/policy}", "some/policy"), ("{policy: some/policy, reward: some/reward}", "some/reward")],
)
def test_the_card_of_a_critic_names_the_model_that_it_started_from(given, base, tmp_path):
    ctx = replace(Job("ppo", "", f"spec.model={given}").ctx, workdir=tmp_path)
    write_card(ctx, CRITIC, tmp_path, 40)
    _, front, _ = (tmp_path / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["base_model"] == base


EXAMPLE = Path(__file__).parents[5] / "examples" / "chat" / "grpo.yaml"


@pytest.mark.parametrize("own", [None, "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}"])
def test_the_chat_examples_policy_opens_with_its_template_and_its_ends(tmp_path, own):
    """With the example's own manifest, on a small model with the same template and end tokens."""
    start, tokenizer = tmp_path / "start", chat_tokenizer()
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    shape = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = create_policy("llama", {**shape, "max_position_embeddings": 128}, tokenizer, 0)
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, end], temperature=0.7, do_sample=True
    )
    model.save_pretrained(start)
    tokenizer.save_pretrained(start)
    given = [] if own is None else [f"data.chatTemplate={json.dumps(own)}"]
    spec = load(EXAMPLE, [f"model.policy={start}", "model.dtype=float32", *given]).spec
    config = RunConfig(job="chat", spec=spec, workdir=str(tmp_path / "run"))
    ctx = replace(Job("grpo").ctx, spec=spec, workdir=tmp_path / "run", tokenizer=load_job_tokenizer(config))
    (used,) = spec.graph.trained
    policy = trained_model(ctx, config, used)
    before = end_tokens(ctx.tokenizer, policy.generation_config, spec.sampling)
    with torch.no_grad():
        policy.unwrapped.model.layers[0].mlp.up_proj.lora_B["default"].weight.normal_()
    export_models(ctx, {used: policy}, spec.steps)

    there = AutoTokenizer.from_pretrained(tmp_path / "run" / "policy")
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "policy")
    assert there.chat_template == (own or CHATML)
    row = json.loads((EXAMPLE.parent / "heldout.jsonl").read_text().splitlines()[0])
    turns = [{"role": "system", "content": spec.data.system_prompt}, *row["prompt"]]
    text = there.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert text == ctx.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert "Calculate 4 - 1." in text
    assert end in before
    assert end_tokens(there, opened.generation_config, spec.sampling) == before
    assert opened.generation_config.eos_token_id == [tokenizer.eos_token_id, end]
    ids = there(text, return_tensors="pt").input_ids
    torch.testing.assert_close(opened(ids).logits, policy.unwrapped(ids).logits, rtol=0, atol=1e-4)
    assert not torch.equal(opened(ids).logits, model(ids).logits)


def test_what_a_trainer_killed_while_it_saved_a_model_has_left_is_removed(tmp_path):
    names = ["initial", "policy", "policy-adapter", "critic"]
    for name in names:
        if not (killed := os.fork()):
            with renamed_into_place(tmp_path / name) as new:
                new.mkdir()
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(killed, 0)
    assert len([*tmp_path.iterdir()]) == len(names)
    others = [tmp_path / name for name in (".policy.of-jane.d", ".policy.notes_12", "policy", ".lock")]
    for folder in others:
        (folder / "kept").mkdir(parents=True)
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(others)
