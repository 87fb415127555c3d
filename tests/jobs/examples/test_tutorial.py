"""docs/guides/tutorial.md as a reader follows it, with the real chat model; training with one short step."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cluster.packages import Unavailable
from tests.repository.test_docs import blocks
from tests.support.forked import warm
from tests.support.rlhf import ROOT, lines
from tests.support.tiny.chat_model import smollm2
from transformers import AutoModelForCausalLM

from rlhf_api.sections.sampling import Sampling
from rlhf_operator.cli import main
from rlhf_trainer.data.sampling_request import SamplingRequest
from rlhf_trainer.local_generation.shared import generate_shared
from rlhf_trainer.models.pretrained.load import load_tokenizer
from rlhf_trainer.ranks.ranks import Ranks
from rlhf_trainer.tensors.records import Prompt

PAGE = ROOT / "docs" / "guides" / "tutorial.md"
END, TURN = 0, 2
"""`<|endoftext|>` and `<|im_end|>`, the tokenizer's and the chat template's."""
SHORT = (
    *("spec.steps=1", "spec.evaluation=null", "spec.optimizer.warmupSteps=0", "spec.model.dtype=float32"),
    *("spec.data.promptsPerStep=2", "spec.sampling.responsesPerPrompt=4", "spec.grpo.minibatchSize=8"),
    f"spec.sampling.responseEndId={END}",
)
COMPARING = "spec.reward.functions=[{function: examples.chat.judge:correct}]"
"""For where the package is not installed whose score the page trains on."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a clone in which the page's second step is done."""
    try:
        model = smollm2()
    except Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("tutorial")
    with_two_ends(model, folder / "runs" / "smollm2")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def with_two_ends(model: Path, out: Path) -> None:
    """The model with one embedding for both end tokens: wherever it would end a turn either comes, as often as the
    other."""
    shutil.copytree(model, out)
    file = out / "model.safetensors"
    weights = load_file(file)
    embedding = weights["model.embed_tokens.weight"]  # of the head too
    embedding[END] = embedding[TURN]
    save_file(weights, file, metadata={"format": "pt"})


def test_its_commands_do_what_it_says(here, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", warm.FromNursery)
    page, output = PAGE.read_text(), ""
    made, converted, *commands = [
        line.removeprefix("$ ") for line in "".join(blocks(PAGE, "console")).splitlines()
    ]
    assert (made, converted) == ("make install", ".venv/bin/python examples/chat/model.py runs/smollm2")
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == ".venv/bin/rlhf"
        if arguments[0] == "run":
            known = importlib.util.find_spec("reasoning_gym") is not None
            sets = SHORT if known else (*SHORT, COMPARING)
            arguments += [part for override in sets for part in ("--set", override)]
        done = subprocess.run(
            [sys.executable, "-m", "rlhf_operator.cli", *arguments],
            cwd=here,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        output += done.stdout
    for language, shown in re.findall(r"^```(\w*)\n(.*?)^```", page, flags=re.S | re.M):
        if not language and " step 1/16 " not in shown:  # the lines of the whole run, which is long
            assert shown in output

    (step,) = lines(here / "runs" / "chat" / "metrics.jsonl")
    assert step["logprob_difference"] < 1e-4, "vLLM and the trainer compute the same model"
    tells_ends(here)
    (snippet,) = blocks(PAGE, "python")
    answered = subprocess.run(
        [sys.executable, "-c", snippet], cwd=here, capture_output=True, text=True, check=True
    )
    assert answered.stdout.strip(), "the saved model has its chat template and answers"


def tells_ends(here: Path) -> None:
    """vLLM's responses in the run, and others that the trainer's own engine gives to the same prompts."""
    file = here / "responses.jsonl"
    assert main(["replay", "export", str(here / "runs" / "chat"), str(file)]) == 0
    of_vllm = lines(file)
    assert len(of_vllm) == 8
    for row in of_vllm:
        assert "<|" not in row["response"], "no reward is given for an end token's letters"
    model = AutoModelForCausalLM.from_pretrained(here / "runs" / "smollm2", dtype=torch.float32)
    prompts = [Prompt(f"0/{i}", tuple(row["prompt_tokens"]), {}) for i, row in enumerate(of_vllm)]
    torch.manual_seed(1)
    of_trainer = generate_shared(
        *(
            SimpleNamespace(gathered=lambda: nullcontext(model), micro_batch_tokens=4096),
            Ranks(0, 1, torch.device("cpu")),
            load_tokenizer(str(here / "runs" / "smollm2")),
            prompts,
        ),
        *(
            SamplingRequest(
                Sampling(temperature=0.8, maxNewTokens=16, responsesPerPrompt=2, responseEndId=END)
            ),
            0,
            threading.Event(),
        ),
    )
    for engine in (
        [(row["response_tokens"], row["finished"]) for row in of_vllm],
        [(list(rollout.tokens), rollout.finished) for rollout in of_trainer],
    ):
        assert {tokens[-1] for tokens, finished in engine if finished} == {END, TURN}
        for tokens, finished in engine:
            assert [token in (END, TURN) for token in tokens] == [False] * (len(tokens) - 1) + [finished]
            assert finished or len(tokens) == 16
