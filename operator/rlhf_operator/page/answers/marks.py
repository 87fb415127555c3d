"""Marks on a run's curves: what its starts, its logs and its status say happened, in order."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from ..folder.log_events import Event
from ..folder.run_folder import RunFolder, iso_time
from .details import read_starts

_MOST = 2000


def list_marks(run: RunFolder) -> dict[str, Any]:
    """`/runs/{id}/marks`: the oldest first."""
    logged = run.events.refresh()
    if run.config().get("sharedGpus"):  # generators give their GPUs up and join again in each step
        logged = [event for event in logged if event.kind != "membership"]
    begun = [time for start in read_starts(run) if (time := _seconds(start["time"])) is not None]
    events = [*logged, *_resumes(begun), *find_restarts(run.events.starts(), begun), *_of_status(run, logged)]
    marks = [
        {
            "step": run.events.step_at(event.time) if event.step is None else event.step,
            "time": iso_time(event.time),
            "kind": event.kind,
            "text": event.text,
        }
        for event in sorted(events, key=lambda event: event.time)
    ]
    return {"marks": marks[-_MOST:]}


def find_restarts(starts: Mapping[str, Sequence[float]], begun: Sequence[float]) -> Iterator[Event]:
    """Starts of a process that are not the first one after the run itself was started or resumed."""
    for process, times in starts.items():
        for before, time in pairwise(times):
            if not any(before < begin <= time for begin in begun):
                yield Event(time, "restart", f"{process} was started again")


def _resumes(begun: Sequence[float]) -> list[Event]:
    return [Event(time, "resume", "the run was started again") for time in begun[1:]]


def _of_status(run: RunFolder, logged: Sequence[Event]) -> Iterator[Event]:
    """The last failure of each role, and the newest breach unless the log has it."""
    status = run.status()
    if status is None:
        return
    for role, each in status.roles.items():
        if (failure := each.last_failure) is not None and (time := _seconds(failure.time)) is not None:
            yield Event(time, "fault", f"{failure.process} ({role.value}): {failure.reason}")
    health = status.health
    if health is not None and not any(
        event.kind == "health" and event.step == health.step for event in logged
    ):
        newest = _seconds(status.completion_time or "") or datetime.datetime.now().timestamp()
        yield Event(newest, "health", f"{health.action}: {health.message}", health.step)


def _seconds(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
