"""The training loop: collect, train, publish, record, save. One page, the same for every algorithm."""

import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import isfinite
from statistics import fmean
from typing import Any, Protocol, cast

from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.report import CheckpointStatus
from rlhf_api.run import EXIT_SUSPENDED
from rlhf_store.manifest import DamagedSnapshot, Entry

from .. import faults
from ..checkpoint.reading import Snapshot
from ..checkpoint.rng import restore_generators, save_generators
from ..checkpoint.saver import Saver
from ..checkpoint.segments import Group
from ..comms.roster import Stopped
from ..context import TrainerContext
from .metrics import Metrics
from .monitor import Monitor
from .step_metrics import gpu_memory
from .tracking import Tracking

log = logging.getLogger(__name__)

LOGGED = ("reward_mean", "kl_mean", "loss", "accuracy", "tokens", "seconds")
"""Metrics in a step's log line; all of them are in metrics.jsonl."""


class Task(Protocol):
    """An algorithm's part of a step. Every method is called on all ranks."""

    def collect(self, step: int) -> dict[str, float]:
        """Collects the data of the next step, unless it has it already; returns metrics."""

    def train(self, step: int) -> dict[str, float]:
        """One training step on the collected data; returns metrics. Raises Stopped, on every rank, where it has trained
        on nothing yet, as if the step had not begun."""

    def other_weights(self) -> str:
        """Names of generators whose served weights differ from what was sent, or ''. The same on every rank."""

    def publish(self, version: int) -> dict[str, float]:
        """Makes the weights known to whoever works with them outside this process; returns figures of that."""

    def evaluate(self, step: int) -> list[dict[str, Any]]:
        """Metrics of each held-out set, on rank 0."""

    def state(self) -> Mapping[str, Any]:
        """JSON state of the task for a snapshot: a copy, since it is written while later steps train."""

    def groups(self) -> Mapping[str, Group]:
        """Tensors of the task for a snapshot; iterating is a collective."""

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        """Blobs of the task for a snapshot, by name; rank 0's are stored. Each is encoded on another thread while later
        steps train, but has the state of this moment."""

    def restore(self, snapshot: Snapshot) -> None:
        """Inverse of `state`, `groups` and `blobs`. Called again with an older snapshot if one is damaged."""

    def reorder(self, times: int) -> None:
        """Reshuffles the remaining data until that was done `times` times in the whole run."""

    @property
    def begins(self) -> int:
        """Number of initial steps in which some model is not trained (critic warm-up)."""

    def export(self) -> None:
        """Writes the trained models to the work directory."""


def train(
    ctx: TrainerContext, task: Task, saver: Saver, earlier: Sequence[Entry], tracking: Tracking | None
) -> int:
    """Runs the job to its end, or to a request to stop; returns the exit code.

    It resumes from the newest intact snapshot of `earlier`. `tracking` is rank 0's.
    """
    spec = ctx.spec
    monitor = Monitor(ctx, saver, begins=task.begins)
    suspend = partial(_suspend, ctx, task, saver, monitor)
    step, reward = _restore(ctx, task, saver, monitor, earlier)
    task.reorder(monitor.rollbacks)
    metrics = None
    if tracking is not None:
        metrics = Metrics(ctx.workdir, step, tracking, rollbacks=monitor.rollbacks)
    ctx.report(step=step, activity="waiting for the other roles")
    task.publish(step)
    if step == 0:
        reward = _evaluate(ctx, task, metrics, step)

    while step < spec.steps:
        faults.point(f"step:{step}")
        saver.check()
        if ctx.stop_requested():
            return suspend(step, reward)
        began = time.perf_counter()
        try:
            figures = task.collect(step)
            if ctx.stop_requested():  # the collected data is saved too and trained on after `--resume`
                return suspend(step, reward)
            ctx.report(activity="training")
            trained = time.perf_counter()
            found = task.train(step)
        except Stopped:  # on every rank, as if the step had not begun
            return suspend(step, reward)
        figures |= found
        # Before these weights are served or saved.
        monitor.check(figures, step + 1, task.other_weights())
        # Where it trains on responses as they come, it has waited for them and scored them meanwhile.
        within = found.get("generate_seconds", 0.0) + found.get("score_seconds", 0.0)
        figures["train_seconds"] = time.perf_counter() - trained - within
        step += 1
        ctx.report(activity="publishing weights")
        published = time.perf_counter()
        with suppress(Stopped):  # on every rank; the next turn saves the step
            figures |= task.publish(step)
        figures["broadcast_seconds"] = time.perf_counter() - published
        figures["seconds"] = time.perf_counter() - began
        _record(ctx, metrics, step, figures)
        gc.collect()
        reward = None
        if spec.evaluation and (step % spec.evaluation.every_steps == 0 or step == spec.steps):
            reward = _evaluate(ctx, task, metrics, step)
        if step % spec.checkpoint.every_steps == 0 or step == spec.steps or ctx.checkpoint_requested():
            _save(ctx, task, saver, monitor, step, reward)
            if metrics is not None:
                metrics.draw(ctx.job)

    _finish(ctx, saver)
    ctx.report(activity="exporting")
    task.export()
    ctx.report(activity="done")
    return 0


def _restore(
    ctx: TrainerContext, task: Task, saver: Saver, monitor: Monitor, earlier: Sequence[Entry]
) -> tuple[int, float | None]:
    """Restores the newest intact snapshot; returns its step and its evaluation, or 0 and None without one."""
    ctx.report(activity="restoring")
    url = saver.archive.store.url
    for entry in reversed(earlier):
        try:
            snapshot = Snapshot.open(ctx.ranks, saver.archive, entry)
            task.restore(snapshot)
            restore_generators(ctx.ranks, snapshot.tensors("generators"))
        except DamagedSnapshot as error:
            log.error("DAMAGED CHECKPOINT of step %d, falling back to the one before: %s", entry.step, error)
            continue
        monitor.restore(cast(dict[str, Any], snapshot.state.get("health", {})))
        saver.knows(snapshot.stored)
        ctx.report(last_checkpoint=CheckpointStatus(step=snapshot.step, time=snapshot.time, uri=url))
        log.info("resumed from the checkpoint of step %d in %s", snapshot.step, url)
        return snapshot.step, entry.reward
    if earlier:
        steps = ", ".join(str(entry.step) for entry in earlier)
        message = f"every checkpoint in {url} is damaged (of steps {steps}), see the log; start anew in another place"
        raise InvalidJob([Problem("spec.checkpoint.store", message)])
    return 0, None


def _suspend(
    ctx: TrainerContext, task: Task, saver: Saver, monitor: Monitor, step: int, reward: float | None
) -> int:
    """`reward` is the step's evaluation, which a checkpoint of it may have already."""
    _save(ctx, task, saver, monitor, step, reward)
    _finish(ctx, saver)
    return EXIT_SUSPENDED


def _save(
    ctx: TrainerContext, task: Task, saver: Saver, monitor: Monitor, step: int, reward: float | None
) -> None:
    """Returns when everything is copied; the upload continues in the background."""
    if saver.busy:
        _finish(ctx, saver)
    ctx.report(activity="saving")
    groups = {**task.groups(), "generators": save_generators(ctx.ranks).items()}
    state = {**task.state(), "health": monitor.state()}
    blobs = task.blobs() if ctx.ranks.first else {}
    saver.begin(step, state, groups, blobs, reward, good=monitor.good)


def _finish(ctx: TrainerContext, saver: Saver) -> None:
    ctx.report(activity="waiting for the checkpoint store")
    saver.finish()


def _evaluate(ctx: TrainerContext, task: Task, metrics: Metrics | None, step: int) -> float | None:
    """Mean over the sets, on rank 0, the higher the better: of their mean scores, or of their negated losses. None if a
    set has no value."""
    if ctx.spec.evaluation is None:
        return None
    ctx.report(activity="evaluating")
    try:
        found = task.evaluate(step)
    except Stopped as error:
        if step == ctx.spec.steps:
            raise
        log.warning("the evaluation after step %d is left out: %s", step, error)
        return None
    if metrics is None or not found:
        return None
    for figures in found:
        metrics.evaluation({"step": step, **figures})
        told = " ".join(f"{n}={v:.4g}" for n, v in figures.items() if isinstance(v, int | float))
        log.info("evaluation after step %d: %s: %s", step, figures["set"], told)
    values = [figures["mean"] if "mean" in figures else -figures["loss"] for figures in found]
    best = fmean(values)
    return best if isfinite(best) else None


def _idle(ctx: TrainerContext, figures: dict[str, float]) -> dict[str, float]:
    """Idle shares of trainer and generators in a step, if the job has generators."""
    if "generate_seconds" not in figures or ctx.spec.generator.shared_with_trainer:
        return {}
    seconds, waited = figures["seconds"], figures["generate_seconds"]
    shares = {"trainer_idle_share": waited / seconds}
    if not ctx.spec.replay.dynamic:  # unknown if responses are trained on as they arrive
        idle = figures.get("generators_idle_seconds", seconds - waited)
        shares["generator_idle_share"] = min(1.0, idle / seconds)
    return shares


def _record(ctx: TrainerContext, metrics: Metrics | None, step: int, figures: dict[str, float]) -> None:
    if metrics is None:
        return
    line = {"step": step, "episode": step, "weight_version": step, **figures, **_idle(ctx, figures)}
    line |= gpu_memory(ctx.ranks.device)
    metrics.step(line)
    recent = [row["seconds"] for row in metrics.recent]
    ctx.report(
        step=step,
        episode=step,
        weight_version=step,
        reward_mean=line.get("reward_mean"),
        kl_mean=line.get("kl_mean"),
        loss=line.get("loss"),
        staleness=line.get("staleness"),
        staleness_max=line.get("staleness_max"),
        staleness_bound=ctx.spec.rollout.max_staleness if "staleness" in line else None,
        trainer_idle=line.get("trainer_idle_share"),
        generator_idle=line.get("generator_idle_share"),
        responses_continued=line.get("responses_continued"),
        importance_effective=line.get("importance_effective_share"),
        tokens_per_second=line["tokens"] / line["seconds"],
        seconds_per_step=sum(recent) / len(recent),
    )
    told = " ".join(f"{name}={figures[name]:.4g}" for name in LOGGED if name in figures)
    log.info("step %d/%d: %s", step, ctx.spec.steps, told)
