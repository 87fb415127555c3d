"""The training loop: collect, train, publish, record, save. One page, the same for every algorithm."""

import gc
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from statistics import fmean

from rlhf_api.sections.samples import SAMPLES
from rlhf_store.manifest import Entry

from ..checkpoint.saver import Saver
from ..dispatch.roster import Stopped
from ..metrics.files import MetricsFiles
from ..metrics.recording import record
from ..metrics.step_lines import StepLines
from ..metrics.tracking import Tracking
from ..process import faults
from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from .checkpoints import Checkpoints
from .monitor import Monitor
from .task import Task

log = logging.getLogger(__name__)


def train(
    ctx: TrainerContext, task: Task, saver: Saver, earlier: Sequence[Entry], tracking: Tracking | None
) -> int:
    """Runs the job to its end, or to a request to stop; returns the exit code.

    It resumes from the newest intact snapshot of `earlier`. `tracking` is rank 0's.
    """
    spec = ctx.spec
    monitor = Monitor(ctx, saver, begins=task.begins)
    checkpoints = Checkpoints(ctx, task, monitor, saver, task.export_files())
    step, reward = checkpoints.restore(earlier)
    files = samples = None
    if tracking is not None:
        files = MetricsFiles(ctx.workdir, step, tracking, rollbacks=monitor.rollbacks)
        samples = StepLines(ctx.workdir / SAMPLES, spec.samples.max_megabytes << 20, step)
    ctx.report(step=step, activity="waiting for the other roles")
    task.publish(step)
    if step == 0:
        reward = _evaluate(ctx, task, files, step)
    elif step == spec.steps and spec.evaluation and reward is None:  # a stop has left it out
        reward = _evaluate(ctx, task, files, step)
        checkpoints.save(step, reward)

    while step < spec.steps:
        faults.point(f"step:{step}")
        saver.check()
        if ctx.stop_requested():
            return checkpoints.suspend(step, reward)
        began = time.perf_counter()
        RECORDER.begin_step()
        try:
            metrics = task.collect(step)
            if ctx.stop_requested():  # the collected data is saved too and trained on after `--resume`
                return checkpoints.suspend(step, reward)
            ctx.report(activity="training")
            training_began = time.perf_counter()
            trained = task.train(step)
        except Stopped:  # on every rank, as if the step had not begun
            return checkpoints.suspend(step, reward)
        metrics |= trained
        # Before these weights are served or saved.
        monitor.check(metrics, step + 1, task.other_weights())
        # Where it trains on responses as they come, it has waited for them and scored them meanwhile.
        within = trained.get("generate_seconds", 0.0) + trained.get("score_seconds", 0.0)
        metrics["train_seconds"] = time.perf_counter() - training_began - within
        step += 1
        ctx.report(activity="publishing weights")
        publishing_began = time.perf_counter()
        with suppress(Stopped):  # on every rank; the next turn saves the step
            metrics |= task.publish(step)
        metrics["broadcast_seconds"] = time.perf_counter() - publishing_began
        metrics["seconds"] = time.perf_counter() - began
        record(ctx, files, step, metrics)
        if samples is not None and tracking is not None:
            sampled = task.samples(step)
            samples.add(step, sampled)
            tracking.log_samples(step, sampled)
        gc.collect()
        reward = None
        if spec.evaluation and (step % spec.evaluation.every_steps == 0 or step == spec.steps):
            try:
                reward = _evaluate(ctx, task, files, step)
            except Stopped:  # in the last one, which the resumed run makes
                return checkpoints.suspend(step, None)
        if step % spec.checkpoint.every_steps == 0 or step == spec.steps or ctx.checkpoint_requested():
            checkpoints.save(step, reward)
        if spec.export.every_steps and step % spec.export.every_steps == 0 and step < spec.steps:
            ctx.report(activity="exporting")
            task.export(step)

    checkpoints.finish()
    ctx.report(activity="exporting")
    task.export(step)
    ctx.report(activity="done")
    return 0


def _evaluate(ctx: TrainerContext, task: Task, files: MetricsFiles | None, step: int) -> float | None:
    """Mean over the sets, on rank 0, the higher the better: of their mean scores, or of their negated losses. None if a
    set has no value, or if a stop is requested meanwhile; after the last step that raises Stopped, on every rank."""
    if ctx.spec.evaluation is None:
        return None
    ctx.report(activity="evaluating")
    try:
        results = task.evaluate(step)
    except Stopped as error:
        if step == ctx.spec.steps:
            raise
        log.warning("the evaluation after step %d was skipped: %s", step, error)
        return None
    if files is None or not results:
        return None
    for metrics in results:
        files.evaluation({"step": step, **metrics})
        words = " ".join(f"{n}={v:.4g}" for n, v in metrics.items() if isinstance(v, int | float))
        log.info("evaluation after step %d: %s: %s", step, metrics["set"], words)
    values = [metrics["mean"] if "mean" in metrics else -metrics["loss"] for metrics in results]
    best = fmean(values)
    return best if isfinite(best) else None
