"""The evaluation of a step stays with its checkpoint, also where a stop saves that step once more."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.trainer.training.running import PAIRS, RANKS, Job

from rlhf_api.contract.run import EXIT_SUSPENDED
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.dispatch.roster import Stopped
from rlhf_trainer.metrics.tracking import Tracking
from rlhf_trainer.tensors.records import Sequences
from rlhf_trainer.training.loop import train


class Run:
    """A job of three steps, evaluated and saved at each; stopped once its reference was asked `calls` times."""

    def __init__(self, folder: Path, calls: int) -> None:
        self._folder, self._left = folder, calls
        overrides = (
            "spec.steps=3",
            "spec.trackers=[]",
            "spec.evaluation={data: [held_out.jsonl], everySteps: 1}",
            f"spec.checkpoint={{store: '{folder.as_uri()}/store', everySteps: 1, keepBest: 1}}",
        )
        self.job = Job("dpo", "", *overrides, refer=self._refer, held_out={"held_out": PAIRS})
        self.archive = Archive(f"{folder.as_uri()}/store")

    def _refer(self, sequences: Sequences, rows: Any) -> torch.Tensor:
        self._left -= 1
        if self._left < 0:
            raise Stopped("stopped while waiting for the reference")
        return self.job.reference(sequences, rows)

    def go(self) -> int:
        ctx = replace(self.job.ctx, workdir=self._folder)
        ctx.services.control.checkpoint_requested = ctx.stop
        self.job.task._ctx = ctx
        committer = Committer.take_over(self.archive, Retention(last=1, best=1))
        with (
            Tracking("job", ctx.spec, self._folder) as tracking,
            Saver(RANKS, self.archive, committer, committed=lambda _: None) as saver,
        ):
            return train(ctx, self.job.task, saver, committer.cuts, tracking)

    def saved(self) -> list[tuple[int, float | None]]:
        return [(entry.step, entry.reward) for entry in self.archive.entries()]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_stop_before_the_next_step_keeps_the_evaluation_of_the_last(resumed, tmp_path):
    assert Run(tmp_path, 5).go() == EXIT_SUSPENDED, "evaluated at steps 0, 1 and 2; at work on the third"
    run = Run(tmp_path, 0)
    if resumed:
        assert run.go() == EXIT_SUSPENDED
    losses = [json.loads(line)["loss"] for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert run.saved() == [(2, -losses[2])], "which is the best"


def test_a_stop_in_the_last_evaluation_saves_its_step_and_the_resumed_run_makes_it(tmp_path):
    stopped = Run(tmp_path, 6)
    assert stopped.go() == EXIT_SUSPENDED, "evaluated at steps 0, 1 and 2, trained three times"
    assert stopped.saved()[-1] == (3, None)
    weights = stopped.job.weights()
    resumed = Run(tmp_path, 9)
    assert resumed.go() == 0
    assert resumed.job.weights() == weights, "nothing is trained again"
    judged = [json.loads(line) for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in judged] == [0, 1, 2, 3]
    assert resumed.saved()[-1] == (3, -judged[-1]["loss"])
