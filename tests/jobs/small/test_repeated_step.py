"""`rlhf replay verify`: a step of a run, computed again from its checkpoints, is the recorded one bit for bit."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.support.rlhf import launch, succeed
from tests.support.tiny.models import tiny_model

PPO = {
    "algorithm": "ppo",
    "steps": 3,
    "seed": 1,
    "sampling": {"responsesPerPrompt": 2, "maxNewTokens": 12},
    "generator": {"sharedWithTrainer": True},
    "ppo": {"epochs": 2, "minibatchSize": 8, "valueMinibatchSize": 8, "klCoefficient": 0.05, "klTarget": 1.0},
    "reward": {"functions": [{"function": "letters_of_this_test:letters"}]},
    "optimizer": {"learningRate": 1e-3, "criticLearningRate": 1e-3},
    "checkpoint": {"everySteps": 1, "keepLast": 3},
}
EACH = {
    **{field: value for field, value in PPO.items() if field != "ppo"},
    "algorithm": "grpo",
    "steps": 2,
    "grpo": {"minibatchSize": 8, "klCoefficient": 0, "normalize": "each"},
    "reward": {
        "functions": [
            {"function": "letters_of_this_test:letters"},
            {"function": "letters_of_this_test:brevity", "weight": 5.0},
        ]
    },
    "optimizer": {"learningRate": 1e-3},
}
LETTERS = """
def letters(prompts, responses, rows):
    return [sum(c.isascii() and c.isalpha() for c in r) / max(1, len(r)) for r in responses]

def brevity(prompts, responses, rows):
    return [-100.0 * len(r) for r in responses]
"""


@pytest.fixture(scope="module")
def run_of_ppo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("repeated"), PPO, "policy", "reference", "critic")


def run(folder: Path, settings: dict[str, Any], *models: str) -> Path:
    tiny_model(folder / "model", tie=False, seed=0)
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Word {i}:"}) + "\n" for i in range(16))
    )
    (folder / "letters_of_this_test.py").write_text(LETTERS)
    model = {name: str(folder / "model") for name in models}
    data = {"train": [str(folder / "rows.jsonl")], "maxPromptLength": 32, "promptsPerStep": 8}
    spec = {**settings, "model": {"dtype": "float32", **model}, "data": data}
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "repeated"}}
    (folder / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    return succeed(folder / "job.yaml", folder / "run", PYTHONPATH=str(folder)).workdir


def verify(workdir: Path, *arguments: str) -> tuple[int, str]:
    process = launch("replay", "verify", str(workdir), *arguments)
    out, _ = process.communicate(timeout=300)
    return process.returncode, out


def test_every_step_of_ppo_is_the_recorded_one(run_of_ppo: Path):
    """With a critic, a reference whose log-probabilities are recorded, two epochs, and a KL coefficient that adapts."""
    for arguments in ((), ("--step", "2")):
        code, out = verify(run_of_ppo, *arguments)
        assert code == 0, out
        for name in ("advantages", "logprobs", "values", "parameters of the policy", "exp_avg of the critic"):
            (line,) = [line for line in out.splitlines() if line.startswith(f"  {name} ")]
            assert line.endswith("the same, bit for bit")
        assert "running state of the algorithm" in out
        difference = float(out.partition("log-probabilities are within ")[2].split()[0])
        assert 0 <= difference < 1e-5


def test_a_step_whose_rewards_are_each_normalised_is_the_recorded_one(tmp_path: Path):
    """Each reward's scores come from the reward role, and are those of the checkpoint when the step is repeated."""
    workdir = run(tmp_path, EACH, "policy")
    code, out = verify(workdir)
    assert code == 0, out
    (line,) = [line for line in out.splitlines() if line.startswith("  advantages ")]
    assert line.endswith("the same, bit for bit")


def test_an_update_of_another_rate_is_none_of_the_run(run_of_ppo: Path, tmp_path: Path):
    other = Path(shutil.copytree(run_of_ppo, tmp_path / "run"))
    config = json.loads((other / "run.json").read_text())
    config["spec"]["optimizer"]["learningRate"] = 2e-3
    (other / "run.json").write_text(json.dumps(config))
    code, out = verify(other)
    assert code == 1
    assert re.search(r"^  parameters of the policy +differs by up to ", out, re.MULTILINE)
    assert re.search(r"^  parameters of the critic +the same, bit for bit", out, re.MULTILINE)


def test_what_cannot_be_repeated_is_one_error(run_of_ppo: Path, tmp_path: Path):
    code, out = verify(run_of_ppo, "--step", "1")
    assert code == 2
    assert (
        "error: --step: a step needs the checkpoints of itself and of the step before; there are those of 1, 2, 3"
        in out
    )
    code, out = verify(tmp_path)
    assert code == 2
    assert "needs a run's work directory" in out
    other = Path(shutil.copytree(run_of_ppo, tmp_path / "run"))
    config = json.loads((other / "run.json").read_text())
    config["spec"]["replay"] = {"maxReplayEpisode": 2}
    (other / "run.json").write_text(json.dumps(config))
    code, out = verify(other)
    assert code == 2
    assert "spec.replay.maxReplayEpisode: the step also trained on responses of earlier steps" in out
