"""A resource that one caller has at a time: namespaces take turns, each in the order of its callers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_WAITING = 64
"""Maximum number of callers of one namespace that wait."""


class TooManyWaiting(Exception):
    """The namespace has as many waiting callers as it may."""


class Turns:
    """A caller that is cancelled while it waits, as by its deadline, loses its place."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._taken = False

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Waits for a turn, which ends with the context. Raises TooManyWaiting."""
        if self._taken:
            await self._wait(namespace)
        self._taken = True
        try:
            yield
        finally:
            self._next()

    async def _wait(self, namespace: str) -> None:
        line = self._waiting.setdefault(namespace, deque())
        if len(line) >= MOST_WAITING:
            raise TooManyWaiting(namespace)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._leave(namespace, place)
            else:  # its turn had just come
                self._next()
            raise

    def _leave(self, namespace: str, place: asyncio.Future[None]) -> None:
        line = self._waiting.get(namespace, deque())
        if place in line:
            line.remove(place)
        if not line:
            self._waiting.pop(namespace, None)

    def _next(self) -> None:
        """Gives the turn to the first caller of the namespace whose last turn is longest ago."""
        while self._waiting:
            namespace = next(iter(self._waiting))
            line = self._waiting.pop(namespace)
            place = line.popleft()
            if line:
                self._waiting[namespace] = line  # last of all
            if not place.done():
                place.set_result(None)
                return
        self._taken = False
