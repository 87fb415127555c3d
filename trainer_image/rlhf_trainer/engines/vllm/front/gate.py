"""Gate of a server's response streams: while new weights come, new streams wait, and some of those under way end."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection

from ....transport.frames import GENERATE
from .guard import App, Receive, Scope, Send

log = logging.getLogger("vllm.rlhf")

VERSION_HEADER = "x-weight-version"
"""Header of a reply by vLLM's own paths: the weight version that samples every token of the reply."""
LABELLED = ("/v1/completions", "/v1/chat/completions")
"""Paths of vLLM's own, whose replies have one weight version from the first to the last token."""
GENERATES = (GENERATE, *LABELLED)
WEIGHTS = "rlhf.weight_version"
LINGER_SECONDS = 2.0
"""Grace period of aborted streams to send their last tokens, seconds; then the swap proceeds without them."""
ABORT_SECONDS = 0.005
"""Interval at which requests that reached the engine after the pause are aborted again, seconds."""


class Gate:
    """Admits response requests, with the weight version that serves then in the scope, under WEIGHTS. The frames of
    GENERATE name the version of their tokens; replies of LABELLED name it in a header.

    While closed, new requests wait, and streams under way keep what they have until `release`: sending the tokens of
    some hundred keeps the event loop from asking for the swap. `empty` aborts those that may not outlast it. A LABELLED
    one that does is cut off, so no token is labelled with a version that did not sample it.
    """

    def __init__(self, app: App) -> None:
        self.app = app
        self.version: int | None = None
        """Version of the serving weights; None: the checkpoint's, and replies are not labelled."""
        self._open = asyncio.Event()
        self._open.set()
        self._flow = asyncio.Event()
        self._flow.set()
        self._inside = Counter[str]()
        """Number of streams under way, by path."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._open.wait()
        path, version = scope["path"], self.version

        async def passing(message: Scope) -> None:
            await self._flow.wait()
            if path in LABELLED:
                message = self._labelled(message, version)
            await send(message)

        self._inside[path] += 1
        try:
            await self.app({**scope, WEIGHTS: version}, receive, passing)
        finally:
            self._inside[path] -= 1

    def close(self) -> None:
        """New requests wait until `open`, streams under way until `release`."""
        self._open.clear()
        self._flow.clear()

    def release(self) -> None:
        """Streams under way send what they have."""
        self._flow.set()

    async def empty(self, paths: Collection[str], abort: Callable[[], Awaitable[object]]) -> None:
        """Waits until all admitted streams of `paths` have ended; `abort` aborts their requests in the engine."""
        deadline = asyncio.get_running_loop().time() + LINGER_SECONDS
        while (left := self._inside_count(paths)) and asyncio.get_running_loop().time() < deadline:
            await abort()
            await asyncio.sleep(ABORT_SECONDS)
        if left:
            log.warning("%d streams did not end within %g s", left, LINGER_SECONDS)

    def open(self, version: int) -> None:
        self.version = version
        self._open.set()

    def _inside_count(self, paths: Collection[str]) -> int:
        return sum(self._inside[path] for path in paths)

    def _labelled(self, message: Scope, version: int | None) -> Scope:
        if self.version != version:
            raise RuntimeError(
                f"the weights of version {version} were replaced during a response, which was cut off"
            )
        if message["type"] != "http.response.start" or version is None:
            return message
        header = (VERSION_HEADER.encode(), str(version).encode())
        return {**message, "headers": [*message.get("headers", ()), header]}
