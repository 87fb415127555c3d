"""An asyncio event loop on a thread of its own, for threads that have none."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

SWITCH_SECONDS = 0.0003
"""Python's thread switch interval, seconds. At the default of 5 ms, a thread that releases the GIL for short moments
and takes it back at once, such as one that decodes tokens, starves all others."""


class EventLoop:
    """Event loop on a daemon thread. Other threads submit coroutines with `run` (wait for the result) or `start` (do
    not wait)."""

    def __init__(self, name: str) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result()

    def cancel_all(self) -> None:
        """Cancels all coroutines, and waits for their ends."""
        self.run(_cancel_others())

    def close(self) -> None:
        """Cancels all coroutines and stops the loop."""
        self.cancel_all()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)


async def _cancel_others() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
