"""Gate of a server's response streams: each has one weight version from its first to its last token."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...comms.frames import GENERATE
from ...weights.members import VERSION_HEADER
from .guard import App, Receive, Scope, Send

log = logging.getLogger("vllm.rlhf")

GENERATES = (GENERATE, "/v1/completions", "/v1/chat/completions")
LINGER_SECONDS = 2.0
"""Grace period of aborted streams to send their last tokens, seconds; then the swap proceeds without them."""
ABORT_SECONDS = 0.005
"""Interval at which requests that reached the engine after the pause are aborted again, seconds."""


class Gate:
    """Admits response requests, each labelled with the weight version that serves it.

    While closed, new requests wait, and streams under way keep what they have until `release`: sending the last tokens
    of some hundred keeps the event loop from asking for the swap. `empty` aborts those under way. A stream that still
    outlasts the swap is cut off, so no token is labelled with a version that did not sample it.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.version: int | None = None
        """Version of the serving weights; None: the checkpoint's, and streams are not labelled."""
        self._open = asyncio.Event()
        self._open.set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._open.wait()
        version = self.version

        async def stamped(message: Scope) -> None:
            await self._flow.wait()
            if self.version != version:
                raise RuntimeError(
                    f"the weights of version {version} were replaced during a response, which was cut off"
                )
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
        """New requests wait until `open`, streams under way until `release`."""
        self._open.clear()
        self._flow.clear()

    def release(self) -> None:
        """Streams under way send what they have."""
        self._flow.set()

    async def empty(self, abort: Callable[[], Awaitable[object]]) -> None:
        """Waits until all admitted streams have ended; `abort` aborts the engine's requests."""
        deadline = asyncio.get_running_loop().time() + LINGER_SECONDS
        while self._inside and asyncio.get_running_loop().time() < deadline:
            await abort()
            await asyncio.sleep(ABORT_SECONDS)
        if self._inside:
            log.warning("%d streams did not end within %g s and were cut off", self._inside, LINGER_SECONDS)

    def open(self, version: int) -> None:
        self.version = version
        self._open.set()
