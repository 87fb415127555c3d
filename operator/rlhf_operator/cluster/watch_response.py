"""Replies of the API server to kopf's lists and watches: kopf holds whole pages and events in memory, and gets what is
kept of each object."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from .pages import Lines, Page
from .trimmed import trimmed

_CHUNK = 1 << 18


class TrimmedResponse(aiohttp.ClientResponse):
    """Reply whose objects are trimmed as they are read, by `json()` of a list and by `content` of a watch."""

    async def start(self, connection: Any) -> "TrimmedResponse":
        await super().start(connection)
        if self.url.query.get("watch") == "true" and self.status == 200:
            self.content = _Events(self.content)  # type: ignore[assignment]
        return self

    async def json(self, **_: Any) -> Any:
        if self.status != 200:
            return await super().json()
        page = Page(trimmed)
        async for data in self.content.iter_chunked(_CHUNK):
            page.feed(data)
        return page.end()


class _Events:
    """A stream's content, by lines."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        lines = Lines(trimmed)
        async for data in self._content.iter_chunked(size):
            yield lines.feed(data)
        yield lines.end()
