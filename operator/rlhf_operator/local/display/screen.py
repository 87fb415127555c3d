"""The live display on a terminal."""

import datetime
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlhf_api.contract.status import JobStatus

from ...console.terminal import CleanConsole
from ...status.role_status import ready_words
from .figures import Waiting, time_left, timing, waiting_line

_EVENTS = 6
LONG_SECONDS = 10.0
"""Duration of an activity from which the panel says how long it has taken, and what is left of it."""
_COLOURS = {"Running": "green", "Succeeded": "green", "Failed": "red", "Suspended": "yellow"}


def can_redraw(out: TextIO) -> bool:
    """True for a terminal whose lines can be rewritten; one with TERM=dumb cannot, such as a shell in Emacs."""
    return out.isatty() and not CleanConsole(file=out).is_dumb_terminal


class Screen:
    """One panel, redrawn in place; the last one stays."""

    def __init__(self, job: str, out: TextIO) -> None:
        self._job = job
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._live = Live(console=CleanConsole(file=out), auto_refresh=False)
        self._step: Mapping[str, Any] = {}
        self._waiting = Waiting(time.monotonic)
        self._broken = False

    def event(self, text: str) -> None:
        self._events.append(f"{datetime.datetime.now():%H:%M:%S} {text}")

    def step(self, step: Mapping[str, Any]) -> None:
        self._step = step

    def show(self, status: JobStatus) -> None:
        if self._broken:
            return
        try:
            if not self._live.is_started:
                self._live.start()
            seconds = self._waiting.seconds(status)
            self._live.update(panel(self._job, status, self._step, self._events, seconds), refresh=True)
        except OSError:
            self._broken = True  # the terminal is gone; the run continues

    def close(self) -> None:
        with suppress(OSError):
            self._live.stop()


def panel(
    job: str, status: JobStatus, step: Mapping[str, Any], events: Iterable[str], seconds: float = 0.0
) -> RenderableType:
    """The whole state of a run on one screen; `step`: the last line of its metrics; `seconds`: for how long it has done
    what it does now."""
    colour = _COLOURS.get(status.phase, "cyan")
    doing = status.activity or status.message if status.completion_time is None else ""
    title = Text.assemble(
        (job, "bold"), "  ", (status.phase, f"bold {colour}"), f"  {doing}" if doing else ""
    )
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    left = time_left(status)
    bar.add_row(
        ProgressBar(total=status.total_steps, completed=status.step, complete_style=colour),
        f"step {status.step}/{status.total_steps}" + (f", {left} left" if left else ""),
    )
    took = [Text.assemble(("last step ", "dim"), timing(step))] if step else []
    is_long = seconds >= LONG_SECONDS and status.completion_time is None
    waits = [Text(waiting_line(status, seconds, step))] if is_long else []
    stalled = [
        Text(c.message, style="yellow")
        for c in status.conditions
        if c.type == "Stalled" and c.status == "True"
    ]
    return Panel(
        Group(bar, _figures(status), *waits, *took, _roles(status), *stalled, *_log(events)),
        title=title,
        title_align="left",
    )


def _log(events: Iterable[str]) -> list[Text]:
    """One line for each event; the newest one in full, as its reason comes last."""
    *older, newest = [*events] or [""]
    cut = [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in older]
    return [*cut, Text(newest, style="dim", overflow="fold")]


def _figures(status: JobStatus) -> Columns:
    values = [
        ("reward", status.reward, ".4g"),
        ("KL", status.kl, ".4g"),
        ("loss", status.loss, ".4g"),
        ("tokens/s", status.tokens_per_second, ",.0f"),
        ("weights", status.weight_version or None, "d"),
        ("checkpoint", status.last_checkpoint.step if status.last_checkpoint else None, "d"),
    ]
    return _row((name, format(value, spec)) for name, value, spec in values if value is not None)


def _roles(status: JobStatus) -> Columns:
    return _row(
        (role.value, ready_words(s) + (f" ({s.restarts} restarts)" if s.restarts else ""))
        for role, s in status.roles.items()
    )


def _row(pairs: Iterable[tuple[str, str]]) -> Columns:
    """The pairs side by side, on more lines where the terminal is narrow."""
    return Columns(
        [Text.assemble((f"{name} ", "dim"), (value, "bold"), no_wrap=True) for name, value in pairs],
        padding=(0, 2),
    )
