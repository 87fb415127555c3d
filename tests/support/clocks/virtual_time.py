"""An event loop without waiting: its clock stands still while anything runs, and jumps to the next timer once nothing
does. For code without input and output of its own, whose deadlines no busy machine passes then."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clock(selectors.SelectSelector):
    """Instead of waiting for events it adds the time that it would have waited."""

    now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events:
            self.now += max(0.0, timeout or 0.0)
        return events


class Loop(asyncio.SelectorEventLoop):
    """With a clock of its own."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run(loop: Loop, work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Raises TimeoutError where it is not done within so many seconds of the loop."""
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(asyncio.wait_for(work, seconds))
