"""Alarms for a run's reader: of its life first, then of suspicious figures, then of time spent in waiting."""

import statistics
import time
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

from rlhf_api.contract.status import JobStatus

from ..folder.run_folder import RunFolder
from .suspicions import Alarm, find_suspicions
from .text_signs import find_text_signs
from .trends import Trend, find_trend

_SLOW_FACTOR, _SLOW_SECONDS = 10, 120.0
"""A running job without a step for so many of its usual steps, and so long, is worth an alarm."""
_RESTARTS = 3
_NEWEST_SAMPLES = 64
_LARGE = 0.5
"""Share of a step above which waiting is worth an alarm."""


def list_alarms(run: RunFolder) -> dict[str, Any]:
    """`/runs/{id}/alarms`."""

    def trend(name: str) -> Trend | None:
        return find_trend(run.metrics.values(name))

    samples = run.samples.refresh()
    newest = samples.read(range(max(0, len(samples) - _NEWEST_SAMPLES), len(samples)))
    alarms = [
        *_of_life(run),
        *find_suspicions(trend, _held_out(run), run.spec()),
        *find_text_signs([placed.sample.response for placed in newest], run.spec()),
        *find_waits(trend),
    ]
    return {"alarms": [alarm._asdict() for alarm in alarms]}


def _of_life(run: RunFolder) -> Iterator[Alarm]:
    status = run.status()
    phase, cause = run.phase(status)
    if phase in ("Died", "Failed"):
        yield Alarm("error", f"The run has {phase.lower()}", cause)
    if status is None:
        return
    for condition in status.conditions:
        if condition.type == "Stalled" and condition.status == "True":
            yield Alarm("error", "The run stands still", condition.message)
        if condition.type == "Healthy" and condition.status == "False":
            yield Alarm("error", f"A health rule is broken ({condition.reason})", condition.message)
    if phase == "Running":
        yield from find_silence(_steps_seconds(run), _silent_seconds(run), status)
    for role, each in status.roles.items():
        if each.restarts >= _RESTARTS:
            cause = each.last_failure.reason if each.last_failure else "the logs have the reasons"
            yield Alarm("warning", f"{role.value} was started again {each.restarts} times", cause)
    if status.ledger is not None and status.ledger.dropped:
        text = "the trainer's log has the reason of each; its model never trains on them"
        count = status.ledger.dropped
        yield Alarm("warning", f"{count} prompts were dropped" if count > 1 else "A prompt was dropped", text)


def find_silence(usual: float | None, silent: float | None, status: JobStatus) -> Iterator[Alarm]:
    """An alarm if no step has come for much longer than `usual` seconds."""
    if usual is None or silent is None or silent < max(_SLOW_SECONDS, _SLOW_FACTOR * usual):
        return
    text = f"a step takes {usual:.3g} s as a rule; now: {status.activity or 'nothing is known'}"
    yield Alarm("error", f"No step for {silent / 60:.0f} minutes", text)


def find_waits(trend: Callable[[str], Trend | None]) -> Iterator[Alarm]:
    """Alarms of parts of a step that took much of its time in the last steps."""
    for name, title, text in (
        (
            "trainer_idle_share",
            "The trainer waits {:.0%} of a step for responses",
            "more generators (spec.generator.replicas) shorten it, or generation ahead of training "
            "(spec.rollout.maxStaleness)",
        ),
        (
            "generator_idle_share",
            "Generators wait {:.0%} of a step for the trainer",
            "generation ahead of training (spec.rollout.maxStaleness) uses it; fewer generators "
            "(spec.generator.replicas) free it",
        ),
    ):
        if (moved := trend(name)) is not None and moved.late > _LARGE:
            yield Alarm("info", title.format(moved.late), text)
    whole = trend("seconds")
    for name, title, text in (
        (
            "score_seconds",
            "Scoring takes {:.0%} of a step",
            "reward_<name>_seconds says which reward; more calls at once (concurrency in spec.reward.functions) or "
            "more servers of a model (spec.reward.replicas) shorten it",
        ),
        (
            "broadcast_seconds",
            "Publishing weights takes {:.0%} of a step",
            "spec.weights.everySteps publishes less often",
        ),
    ):
        if (moved := trend(name)) is not None and whole is not None and moved.late > _LARGE * whole.late > 0:
            yield Alarm("info", title.format(moved.late / whole.late), text)
    if (moved := trend("memory_retries")) is not None and moved.late > 0:
        text = "fewer spec.trainer.microBatchTokens, or spec.trainer.gradientCheckpointing, free memory"
        yield Alarm("info", "The GPU is too full: torch frees memory within steps", text)


def _held_out(run: RunFolder) -> list[float]:
    names = [name for name in run.evaluations.names if name.endswith("/mean")]
    return [value for value in run.evaluations.values(names[0]) if isfinite(value)] if names else []


def _steps_seconds(run: RunFolder) -> float | None:
    finite = [value for value in run.metrics.values("seconds")[-50:] if isfinite(value)]
    return statistics.median(finite) if finite else None


def _silent_seconds(run: RunFolder) -> float | None:
    updated = run.last_step_time()
    return None if updated is None else time.time() - updated
