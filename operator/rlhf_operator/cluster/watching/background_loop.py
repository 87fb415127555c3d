"""An event loop in a thread of its own, where reconciles cannot delay the lease's renewal, and for kopf."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

_STOP_SECONDS = 5.0


class BackgroundLoop:
    """Event loop in a thread of its own, for the duration of the context; at its end what still runs is cancelled."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, _STOP_SECONDS)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the background loop and awaits its result; cancelling this cancels `work`."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
