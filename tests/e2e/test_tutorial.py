"""docs/tutorial.md as a reader follows it, with the real chat model; training with one short step."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.packages import Unavailable
from tests.support.chat_model import smollm2
from tests.support.rlhf import ROOT, lines
from tests.test_docs import blocks

PAGE = ROOT / "docs" / "tutorial.md"
SHORT = (
    *("spec.steps=1", "spec.evaluation=null", "spec.optimizer.warmupSteps=0", "spec.model.dtype=float32"),
    *("spec.data.promptsPerStep=2", "spec.sampling.answersPerPrompt=2", "spec.grpo.minibatchSize=4"),
)
COMPARING = "spec.reward.functions=[{function: examples.chat.tasks:correct}]"
"""For where the package is not installed whose score the page trains on."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a clone in which the page's second step is done."""
    try:
        model = smollm2()
    except Unavailable as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("tutorial")
    (folder / "runs").mkdir()
    (folder / "runs" / "smollm2").symlink_to(model)
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def test_its_commands_do_what_it_says(here):
    page, said = PAGE.read_text(), ""
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
        said += done.stdout
    for language, shown in re.findall(r"^```(\w*)\n(.*?)^```", page, flags=re.S | re.M):
        if not language and " step 1/16 " not in shown:  # the lines of the whole run, which is long
            assert shown in said

    (step,) = lines(here / "runs" / "chat" / "metrics.jsonl")
    assert step["logprob_difference"] < 1e-4, "vLLM and the trainer compute the same model"
    (snippet,) = blocks(PAGE, "python")
    answered = subprocess.run(
        [sys.executable, "-c", snippet], cwd=here, capture_output=True, text=True, check=True
    )
    assert answered.stdout.strip(), "the saved model has its chat template and answers"
