"""An asyncio event loop on a thread of its own, for threads that have none and for work that others must not delay."""

import asyncio
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

SWITCH_SECONDS = 0.0003
"""Python's thread switch interval, seconds. At the default of 5 ms, a thread that releases the GIL for short moments
and takes it back at once, such as one that decodes tokens, starves all others."""
_STOP_SECONDS = 5.0


class EventLoop:
    """Event loop on a daemon thread, until `close` or the end of the context. Other threads submit coroutines with
    `run` (wait for the result) or `start` (do not wait), and other loops with `run_async`."""

    def __init__(self, name: str) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.start(coroutine).result()

    async def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits the coroutine's result; cancelling this cancels the coroutine."""
        return await asyncio.wrap_future(self.start(coroutine))

    def close(self) -> None:
        """Stops the loop, which cancels what still runs."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_SECONDS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()
