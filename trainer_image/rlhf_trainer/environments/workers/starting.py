"""Starts workers on demand: whoever asks for one waits for a start as long as it is short, and goes on with the workers
there are where it takes minutes.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from rlhf_api.host.tasks import end_all

from .interface import EpisodeWorker

log = logging.getLogger(__name__)

WAIT_SECONDS = 10.0
"""Time of a start after which it holds up nobody for whom there is a worker, nor the next start."""


class StartedWorker(EpisodeWorker, Protocol):
    @property
    def is_closed(self) -> bool:
        """True once another one may be in its place."""
        ...

    async def end(self, reason: str) -> None: ...


W = TypeVar("W", bound=StartedWorker)


class Starting(Generic[W]):
    """Workers of one kind. `start` returns None where none can be started now; `is_single`: one worker is enough,
    however many episodes it has."""

    def __init__(self, start: Callable[[], Awaitable[W | None]], *, is_single: bool) -> None:
        self._start, self._is_single = start, is_single
        self.workers = list[W]()
        self._under_way = dict[asyncio.Future[W | None], float]()
        """Starts, with the times when they began."""

    @property
    def count(self) -> int:
        """Number of workers, with those that are being started."""
        return len(self.workers) + len(self._under_way)

    async def free(self) -> W | None:
        """The worker with the fewest episodes, maybe a new one; None where none lives and none can be started now.
        Raises as `start`, to who has asked for that one."""
        own: asyncio.Future[W | None] | None = None
        while True:
            self.workers = [worker for worker in self.workers if not worker.is_closed]
            living = [worker for worker in self.workers if worker.lives]
            if any(self._is_single or worker.episodes == 0 for worker in living):
                break
            is_refused = own is not None and own.done() and own.result() is None
            if own is not None and (own.done() or not self._is_recent()):
                if living or (is_refused and not self._under_way):
                    break
                own = None
            if own is None and not is_refused and not self._is_recent():
                own = self._begin()
            await self._wait()
        return min(living, key=lambda worker: worker.episodes, default=None)

    async def end(self, reason: str) -> None:
        """Ends all workers, and all starts."""
        await end_all(self._under_way)
        await asyncio.gather(*(worker.end(reason) for worker in self.workers))

    def _begin(self) -> "asyncio.Future[W | None]":
        start = asyncio.ensure_future(self._start())
        self._under_way[start] = time.monotonic()
        start.add_done_callback(self._take)
        return start

    def _take(self, start: "asyncio.Future[W | None]") -> None:
        del self._under_way[start]
        if start.cancelled():
            return
        if error := start.exception():
            log.warning("a process of environments did not start: %s", error)
        elif made := start.result():
            self.workers.append(made)

    def _is_recent(self) -> bool:
        return self._left() > 0

    def _left(self) -> float:
        """Seconds until the last start holds up nobody."""
        return max(self._under_way.values(), default=-math.inf) + WAIT_SECONDS - time.monotonic()

    async def _wait(self) -> None:
        """Waits for the end of a start, at most until the last one holds up nobody, or for as long again."""
        if self._under_way:
            left = self._left()
            await asyncio.wait(
                self._under_way,
                timeout=left if left > 0 else WAIT_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
