"""Progress display of a running job: live on a terminal, plain lines elsewhere."""

import datetime
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from rlhf_api.contract.report import STARTING
from rlhf_api.contract.status import JobStatus

from ..console.exits import print_line
from .figures import step_line, time_left
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


class Lines:
    """One line per event and per step; before the first step also what the trainer does."""

    def __init__(self, out: TextIO, total_steps: int) -> None:
        self._out = out
        self._total = total_steps
        self._left: str | None = None
        self._doing: str | None = None
        self._stepped = False

    def event(self, text: str) -> None:
        self._print(text)

    def step(self, step: Step) -> None:
        self._stepped = True
        self._print(step_line(step, self._total) + (f"  {self._left} left" if self._left else ""))

    def show(self, status: JobStatus) -> None:
        self._left = time_left(status)
        if not self._stepped and status.activity not in (None, STARTING, self._doing):
            self._doing = status.activity
            self._print(f"trainer: {status.activity.removeprefix(f'{STARTING}: ')}")

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        print_line(f"{datetime.datetime.now():%H:%M:%S} {text}", self._out)


def display(job: str, total_steps: int) -> Display:
    """The display for the output: live on a terminal that allows it, else lines."""
    out = sys.stdout
    return Screen(job, out) if can_redraw(out) else Lines(out, total_steps)
