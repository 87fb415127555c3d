"""The training loop: collect, train, publish, record, save. One page, the same for every algorithm."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

from rlhf_api.run import EXIT_SUSPENDED
from rlhf_api.status import CheckpointStatus

from . import faults
from .checkpoint.cuts import Cut, Cuts, Group
from .checkpoint.generators import restore_generators, save_generators
from .metrics import Metrics
from .run import Run

log = logging.getLogger(__name__)

TOLD = ("reward_mean", "kl_mean", "loss", "accuracy", "tokens", "seconds")
"""Figures in the log's line of a step; all of them stand in metrics.jsonl."""


class Task(Protocol):
    """What an algorithm does in each part of a step. Every method is called on all ranks."""

    def collect(self, step: int) -> dict[str, float]:
        """Gathers what the next step trains on, unless it is at hand already; returns figures of the step."""

    def train(self, step: int) -> dict[str, float]:
        """Updates the models once on what was collected; returns figures of the step."""

    def publish(self, version: int) -> None:
        """Makes the weights known to whoever works with them outside this process."""

    def evaluate(self, step: int) -> dict[str, Any] | None:
        """Figures on held-out data, where the job has any."""

    def state(self) -> Mapping[str, Any]:
        """What a checkpoint holds of the task as JSON."""

    def groups(self) -> Mapping[str, Group]:
        """What a checkpoint holds of the task as tensors; a collective while it is iterated."""

    def restore(self, cut: Cut) -> None:
        """The inverse of `state` and `groups`."""

    def export(self) -> None:
        """Writes the trained model to the work directory."""


def train(run: Run, task: Task, cuts: Cuts, *, resume: bool) -> int:
    """Runs the job to its end, or to a request to stop; returns the exit code."""
    spec = run.spec
    step = _restore(run, task, cuts) if resume else 0
    metrics = Metrics(run.workdir, step) if run.ranks.first else None
    run.report(step=step, activity="waiting for the other roles")
    task.publish(step)
    if step == 0:
        _evaluate(run, task, metrics, step)

    while step < spec.steps:
        faults.point(f"step:{step}")
        if run.stop_requested():
            return _suspend(run, task, cuts, step)
        began = time.perf_counter()
        figures = task.collect(step)
        if run.stop_requested():  # what was collected is saved with the rest and trained on after `--resume`
            return _suspend(run, task, cuts, step)
        run.report(activity="training")
        trained = time.perf_counter()
        figures |= task.train(step)
        figures["train_seconds"] = time.perf_counter() - trained
        step += 1
        run.report(activity="publishing weights")
        published = time.perf_counter()
        task.publish(step)
        figures["broadcast_seconds"] = time.perf_counter() - published
        figures["seconds"] = time.perf_counter() - began
        _record(run, metrics, step, figures)
        if spec.evaluation and (step % spec.evaluation.every_steps == 0 or step == spec.steps):
            _evaluate(run, task, metrics, step)
        if step % spec.checkpoint.every_steps == 0 or step == spec.steps or run.checkpoint_requested():
            _save(run, task, cuts, step)
            if metrics is not None:
                metrics.draw(run.job)

    run.report(activity="exporting")
    task.export()
    run.report(activity="done")
    return 0


def _restore(run: Run, task: Task, cuts: Cuts) -> int:
    """Back to the newest cut; without one, the start."""
    run.report(activity="restoring")
    newest = run.ranks.share(lambda: ({}, {"step": cut.step if (cut := cuts.newest()) else None}))[1]["step"]
    if newest is None:
        log.warning("no checkpoint in %s: starting from step 0", cuts.url)
        return 0
    cut = cuts.open(newest)
    task.restore(cut)
    restore_generators(run.ranks, cut.tensors("generators"))
    run.report(last_checkpoint=CheckpointStatus(step=cut.step, time=cut.time, uri=cuts.url))
    log.info("resumed from the checkpoint of step %d in %s", cut.step, cuts.url)
    return cut.step


def _suspend(run: Run, task: Task, cuts: Cuts, step: int) -> int:
    _save(run, task, cuts, step)
    return EXIT_SUSPENDED


def _save(run: Run, task: Task, cuts: Cuts, step: int) -> None:
    run.report(activity="saving")
    groups = {**task.groups(), "generators": save_generators(run.ranks).items()}
    if not run.ranks.first:
        for tensors in groups.values():
            for _ in tensors:  # gathering the weights is a collective
                pass
        return
    cut = cuts.write(step, task.state(), groups)
    cuts.retain(run.spec.checkpoint.keep_last)
    run.report(last_checkpoint=CheckpointStatus(step=step, time=cut.time, uri=cuts.url))
    log.info("saved the checkpoint of step %d to %s", step, cuts.url)


def _evaluate(run: Run, task: Task, metrics: Metrics | None, step: int) -> None:
    if run.spec.evaluation is None:
        return
    run.report(activity="evaluating")
    found = task.evaluate(step)
    if metrics is not None and found is not None:
        metrics.evaluation({"step": step, **found})
        log.info("evaluation after step %d: %.4f over %d answers", step, found["mean"], found["count"])


def _record(run: Run, metrics: Metrics | None, step: int, figures: dict[str, float]) -> None:
    if metrics is None:
        return
    line = {"step": step, "episode": step, "weight_version": step, **figures}
    metrics.step(line)
    recent = [row["seconds"] for row in metrics.recent]
    run.report(
        step=step,
        episode=step,
        weight_version=step,
        reward_mean=line.get("reward_mean"),
        kl_mean=line.get("kl_mean"),
        loss=line.get("loss"),
        staleness=line.get("staleness"),
        tokens_per_second=line["tokens"] / line["seconds"],
        seconds_per_step=sum(recent) / len(recent),
    )
    told = " ".join(f"{name}={figures[name]:.4g}" for name in TOLD if name in figures)
    log.info("step %d/%d: %s", step, run.spec.steps, told)
