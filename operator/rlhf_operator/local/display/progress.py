"""Progress display of a running job: live on a terminal, plain lines elsewhere."""

import datetime
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from rlhf_api.contract.report import STARTING
from rlhf_api.contract.status import ENDED, JobStatus

from ...console.exits import print_line
from .figures import Waiting, step_line, time_left, waiting_line
from .screen import Screen, can_redraw

Step = Mapping[str, Any]
"""A line of `metrics.jsonl`."""


class Display(Protocol):
    """Shows a run's progress; its errors never fail the run."""

    def event(self, text: str) -> None:
        """Reports an event."""

    def step(self, step: Step) -> None:
        """Reports a finished step."""

    def show(self, status: JobStatus) -> None:
        """Shows the status; called often."""

    def close(self) -> None:
        """Ends the display."""


HEARTBEAT_SECONDS = 30.0
"""Time without a line after which the next one says what is being waited for."""


class Lines:
    """One line per event and per step; before the first step also what the trainer does; and what is being waited for,
    whenever there has been no line for HEARTBEAT_SECONDS."""

    def __init__(self, out: TextIO, total_steps: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds, monotonic."""
        self._out, self._clock = out, clock
        self._total = total_steps
        self._left: str | None = None
        self._doing: str | None = None
        self._last_step: Step = {}
        self._waiting = Waiting(clock)
        self._printed = clock()

    def event(self, text: str) -> None:
        self._print(text)

    def step(self, step: Step) -> None:
        self._last_step = step
        self._print(step_line(step, self._total) + (f"  {self._left} left" if self._left else ""))

    def show(self, status: JobStatus) -> None:
        self._left = time_left(status)
        if not self._last_step and status.activity not in (None, STARTING, self._doing):
            self._doing = status.activity
            self._print(f"trainer: {status.activity.removeprefix(f'{STARTING}: ')}")
        seconds = self._waiting.seconds(status)
        if self._clock() - self._printed >= HEARTBEAT_SECONDS and status.phase not in (*ENDED, "Suspended"):
            self._print(f"still {waiting_line(status, seconds, self._last_step)}")

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        self._printed = self._clock()
        print_line(f"{datetime.datetime.now():%H:%M:%S} {text}", self._out)


def display(job: str, total_steps: int) -> Display:
    """The display for the output: live on a terminal that allows it, else lines."""
    out = sys.stdout
    return Screen(job, out) if can_redraw(out) else Lines(out, total_steps)
