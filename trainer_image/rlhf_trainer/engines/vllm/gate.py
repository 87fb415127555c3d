"""The gate between two swaps of the weights: every response stream has one weight version from first to last token."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...comms.frames import GENERATE
from ...weights.members import VERSION_HEADER
from .guard import App, Receive, Scope, Send

log = logging.getLogger("vllm.rlhf")

GENERATES = (GENERATE, "/v1/completions", "/v1/chat/completions")
LINGER_SECONDS = 2.0
"""Deadline of interrupted streams: their last tokens are sent within it, or the swap goes on without them."""
ABORT_SECONDS = 0.005
"""Between two aborts of requests that reached the engine only after it was paused."""


class Gate:
    """Lets requests for responses through, each stamped with the weight version that serves it.

    While closed, requests wait; those inside are interrupted by `empty`. A stream that outlasts the swap all the same
    is cut off, so no token bears a version that did not sample it.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.version: int | None = None
        """Of the weights that serve; None: those of the checkpoint, and streams are not stamped."""
        self._open = asyncio.Event()
        self._open.set()
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._open.wait()
        version = self.version

        async def stamped(message: Scope) -> None:
            if self.version != version:
                raise RuntimeError(f"the weights changed from version {version} under a response: cut off")
            if message["type"] == "http.response.start" and version is not None:
                header = (VERSION_HEADER.encode(), str(version).encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        self._inside += 1
        try:
            await self.app(scope, receive, stamped)
        finally:
            self._inside -= 1

    def close(self) -> None:
        """Requests that come from now on wait until `open`."""
        self._open.clear()

    async def empty(self, abort: Callable[[], Awaitable[object]]) -> None:
        """Waits until all streams that are inside have ended; `abort` ends those that the engine has."""
        deadline = asyncio.get_running_loop().time() + LINGER_SECONDS
        while self._inside and asyncio.get_running_loop().time() < deadline:
            await abort()
            await asyncio.sleep(ABORT_SECONDS)
        if self._inside:
            log.warning("%d streams did not end in %g s: they are cut off", self._inside, LINGER_SECONDS)

    def open(self, version: int) -> None:
        self.version = version
        self._open.set()
