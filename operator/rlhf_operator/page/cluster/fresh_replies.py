"""Replies of the API server, which are not asked for again while they are fresh."""

import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

FRESH_SECONDS = 2.0
Key = TypeVar("Key")
Reply = TypeVar("Reply")


class FreshReplies(Generic[Key, Reply]):
    """The replies to requests of one kind, by what each asks for; forgotten all at once where there are `most`."""

    def __init__(self, most: int) -> None:
        self._most, self._replies = most, dict[Key, tuple[float, Reply]]()

    async def get(self, key: Key, ask: Callable[[Key], Awaitable[Reply]]) -> Reply:
        """The reply, by `ask` where none is fresh. Raises as that, and then keeps none."""
        since, reply = self._replies.get(key, (0.0, None))
        if reply is not None and time.monotonic() - since <= FRESH_SECONDS:
            return reply
        self._replies.pop(key, None)
        reply = await ask(key)
        if len(self._replies) >= self._most:
            self._replies.clear()
        self._replies[key] = time.monotonic(), reply
        return reply
