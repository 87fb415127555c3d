"""Faults of a run, read from the trainer's log and from the starts in all logs as they grow."""

import datetime
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...archive.run_files import GrowingFile
from ...local.processes.log import OLDER
from ...local.records import workdir

MOST_EVENTS = 1000
"""Of a log; the newest."""
_MOST_LOGS = 256
_MOST_STEPS = 100_000
_LONGEST_TEXT = 400
_TRAINER = "trainer-0.log"
_START = re.compile(rb"=== (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ")
_LINE = re.compile(
    rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d{3} (?:INFO|WARNING|ERROR) rlhf_trainer\.([\w.]+): (.*)"
)
_STEP = re.compile(r"step (\d{1,15})/\d+: ")
_KINDS = (
    ("training.monitor", re.compile(r"(?:warn|pause|rollback|fail): "), "health"),
    ("training.checkpoints", re.compile(r"resumed from the checkpoint of step "), "resume"),
    ("weights.publisher", re.compile(r"\S+ joined with weight version (?!0$)"), "membership"),
    ("weights.publisher", re.compile(r"\S+ did not take weight version "), "membership"),
    ("weights.publisher", re.compile(r"\S+ did not give its GPU up"), "fault"),
    ("dispatch.assignments", re.compile(r"\S+ failed \("), "fault"),
    ("dispatch.dispatch", re.compile(r"giving up on "), "fault"),
)
"""Module of the trainer that logs a line, how the line begins, and what it is about."""


class Event(NamedTuple):
    """`step`: the one under way then; None where only the time is known."""

    time: float
    kind: str
    text: str
    step: int | None = None


class LogEvents:
    """Events of the logs of a folder. Not for several threads at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._trainer = GrowingFile(folder, f"{workdir.LOGS}/{_TRAINER}")
        self._events = deque[Event](maxlen=MOST_EVENTS)
        self._steps = deque[tuple[float, int]](maxlen=_MOST_STEPS)
        """When each step was logged."""
        self._starts: dict[str, tuple[GrowingFile, deque[float]]] = {}

    def refresh(self) -> list[Event]:
        """The trainer's events up to now."""
        is_new, lines = self._trainer.begin()
        if is_new or (not self._events and not self._steps):  # its content may have moved to an older file
            self._events.clear()
            self._steps.clear()
            for number in range(OLDER, 0, -1):
                self._parse(GrowingFile(self._folder, f"{workdir.LOGS}/{_TRAINER}.{number}").begin()[1])
        self._parse(lines)
        return list(self._events)

    def starts(self) -> dict[str, list[float]]:
        """Times of the starts of each process, as far back as its newest log goes."""
        for file in sorted((self._folder / workdir.LOGS).glob("*.log"))[:_MOST_LOGS]:
            name = file.stem
            log, times = self._starts.setdefault(
                name, (GrowingFile(self._folder, f"{workdir.LOGS}/{file.name}"), deque(maxlen=MOST_EVENTS))
            )
            is_new, lines = log.begin()
            if is_new:
                times.clear()
            times.extend(_seconds(match[1]) for line in lines if (match := _START.match(line)))
        return {name: list(times) for name, (_, times) in self._starts.items()}

    def step_at(self, time: float) -> int:
        """The step under way at a time, as the trainer's log has it."""
        place = bisect_right(self._steps, time, key=lambda logged: logged[0])
        return self._steps[place - 1][1] + 1 if place else 0

    def _parse(self, lines: Iterator[bytes]) -> None:
        for line in lines:
            match = _LINE.match(line)
            if match is None:
                continue
            time, module, text = (
                _seconds(match[1]),
                match[2].decode(),
                match[3].decode(errors="replace").rstrip(),
            )
            if module == "metrics.recording":
                if (step := _STEP.match(text)) is not None:
                    self._steps.append((time, int(step[1])))
                continue
            kind = next((kind for name, begin, kind in _KINDS if name == module and begin.match(text)), None)
            if kind is not None:
                under_way = self._steps[-1][1] + 1 if self._steps else 0
                self._events.append(Event(time, kind, text[:_LONGEST_TEXT], under_way))


def _seconds(local: bytes) -> float:
    """The time of a log, which is this machine's, as seconds since 1970; 0 for none that there is."""
    try:
        return datetime.datetime.fromisoformat(local.decode()).timestamp()
    except ValueError:
        return 0.0
