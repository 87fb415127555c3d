"""The loop saves what it trains: a saver of stale tensors ends the run, and training that changes nothing does not."""

import threading
from pathlib import Path

import pytest
import torch
from tests.unit.trainer.training.running import RANKS, Job

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint import saver as module
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.checkpoint.wrong_snapshot import WrongSnapshot
from rlhf_trainer.process import faults
from rlhf_trainer.training.loop import train

EVERY = ("spec.steps=3", "spec.checkpoint={everySteps: 1, keepLast: 9}")


def saved_steps(job: Job, folder: Path) -> list[int]:
    """Runs the job to its end; the steps of its snapshots."""
    job.ctx.services.control.checkpoint_requested = threading.Event()
    archive = Archive(f"file://{folder}")
    with Saver(
        RANKS, archive, Committer.take_over(archive, Retention(last=9)), committed=lambda _: None
    ) as saver:
        train(job.ctx, job.task, saver, (), None)
    return [entry.step for entry in archive.entries()]


@pytest.fixture
def stale(monkeypatch):
    """The named fault, whose change of the saver is undone."""
    monkeypatch.setattr(module, "copied", module.copied)
    monkeypatch.setenv(faults.VARIABLE, "tests.support.faults:save_the_first_tensors_again")
    faults._hook.cache_clear()
    yield
    faults._hook.cache_clear()


@pytest.mark.usefixtures("stale")
@pytest.mark.parametrize(("algorithm", "model"), [("dpo", "policy"), ("ppo", "critic")])
def test_a_saver_that_repeats_its_first_tensors_ends_the_run(tmp_path, algorithm, model):
    kinds = f"{model}/parameters, {model}/exp_avg, {model}/exp_avg_sq"
    with pytest.raises(WrongSnapshot, match=f"{kinds}.* of step 2 are those of the snapshot before"):
        saved_steps(Job(algorithm, "", *EVERY), tmp_path)
    assert [entry.step for entry in Archive(f"file://{tmp_path}").entries()] == [1]


def test_a_run_whose_gradient_is_zero_saves_the_same_weights(tmp_path):
    """All responses of a group have one score, and nothing else moves the policy."""
    settings = "klCoefficient: 0"
    job = Job("grpo", settings, *EVERY, score=lambda sequences, _: torch.ones(len(sequences)))
    job.task.export = lambda _: None
    before = job.weights()
    assert saved_steps(job, tmp_path) == [1, 2, 3]
    assert job.weights() == before
    assert job.task.updates() == {"policy": 0}


def test_updates_that_move_a_model_are_counted(tmp_path):
    job = Job("ppo", "", *EVERY)
    job.task.export = lambda _: None
    assert saved_steps(job, tmp_path) == [1, 2, 3]
    assert job.task.updates() == {"policy": 3, "critic": 3}
