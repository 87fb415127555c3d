"""`rlhf run` with the real roles, of which something is killed: the job ends well, and says what died."""

from pathlib import Path

import pytest
import yaml
from tests.chaos.conftest import spec
from tests.support.models import tiny_model
from tests.support.rlhf import Finished, succeed

REAPER, TORCHRUN, ROLE = "reaper.py", "rlhf_trainer.torchrun", "rlhf_trainer.roles."
STEPS = 4


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A tiny PPO job that generates in its trainer and is rewarded by a function."""
    policy = tiny_model(tmp_path / "policy", tie=False, seed=1)
    job = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "deaths"}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump({**job, "spec": {**spec(tmp_path, policy), "steps": STEPS}}))
    return file


def check(finished: Finished, **restarts: int) -> None:
    """Every step is there once, every prompt was trained on, and who was started again is counted."""
    assert [line["step"] for line in finished.steps] == list(range(1, STEPS + 1))
    ledger = finished.status["ledger"]
    assert (ledger["dropped"], ledger["lost"]) == (0, 0)
    counted = {name: role["restarts"] for name, role in finished.status["roles"].items()}
    assert counted == dict.fromkeys(counted, 0) | restarts


@pytest.mark.parametrize(
    ("killed", "words"),
    [
        (REAPER, "lost its supervising process, which was ended by SIGKILL"),
        (TORCHRUN, "was ended by SIGKILL"),
    ],
)
def test_a_rank_does_not_outlive_what_is_between_it_and_its_host(manifest, tmp_path, killed, words):
    environ = {"RLHF_FAULTS": "tests.support.faults:kill_as_named", "KILL": f"trainer-0={killed}"}
    finished = succeed(manifest, tmp_path / "run", "spec.trainer.processesPerReplica=2", **environ)
    check(finished, trainer=1)
    assert f"trainer-0 {words}; see " in finished.output


@pytest.mark.parametrize(("reward", "reference"), [(REAPER, f"{ROLE}reference"), (f"{ROLE}reward", REAPER)])
def test_training_waits_for_a_reward_and_a_reference_that_are_killed(manifest, tmp_path, reward, reference):
    killed = f"reward-0={reward} reference-0={reference}"
    environ = {"RLHF_FAULTS": "tests.support.faults:kill_as_named", "KILL": killed}
    finished = succeed(manifest, tmp_path / "run", **environ)
    check(finished, reward=1, reference=1)
    for name in ("reward-0", "reference-0"):
        assert f"{name} started again" in finished.output
    assert finished.output.count("lost its supervising process") == 1


def test_a_generator_whose_engine_dies_in_a_commit_is_started_again(manifest, tmp_path):
    two = ("spec.generator.sharedWithTrainer=false", "spec.generator.replicas=2", "spec.replay={}")
    faults = "tests.support.faults:kill_engine_in_swap"
    finished = succeed(manifest, tmp_path / "run", *two, RLHF_FAULTS=faults)
    check(finished, generator=1)
    (line,) = [line for line in finished.output.splitlines() if "exited with code 70" in line]
    assert ": vLLM's process EngineCore (pid " in line
    assert " was ended by SIGKILL; see " in line
