"""Clock of the call that a process of environments answers. Time in which it waits for others is none of its seconds.
Imports no torch."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from math import inf

SIGN_SECONDS = 0.5


class CallClock:
    """Of a call that may take so many `seconds`; `tell` gets those of a wait, each SIGN_SECONDS, as whoever waits for
    the reply does not count them either."""

    def __init__(self, seconds: float, tell: Callable[[float], None]) -> None:
        self._seconds, self._tell = seconds, tell
        self._began = self._waited_until = time.monotonic()
        self._waited = 0.0

    @property
    def spent(self) -> float:
        """Seconds that count."""
        return time.monotonic() - self._began - self._waited

    @property
    def left(self) -> float:
        return self._seconds - self.spent

    async def follow(self, progress: Callable[[], object]) -> None:
        """Leaves out the time in which `progress` goes on, that of several waits at once one time."""
        while True:
            before, began = progress(), time.monotonic()
            await asyncio.sleep(SIGN_SECONDS)
            if progress() != before:
                now = time.monotonic()
                waited = now - max(began, self._waited_until)
                self._waited, self._waited_until = self._waited + waited, now
                self._tell(waited)


CLOCK: ContextVar[CallClock | None] = ContextVar("CLOCK", default=None)
"""Of the call that a task works on, if it does so."""


def seconds_left() -> float:
    """Of the call, infinite outside of any."""
    clock = CLOCK.get()
    return inf if clock is None else clock.left


@asynccontextmanager
async def waiting(progress: Callable[[], object]) -> AsyncIterator[None]:
    """Stops the call's clock within, as long as others go on: as `progress` returns something else again and again."""
    clock = CLOCK.get()
    following = None if clock is None else asyncio.ensure_future(clock.follow(progress))
    try:
        yield
    finally:
        if following is not None:
            following.cancel()
