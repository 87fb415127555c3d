"""HTTP session of kopf's lists and watches: kopf holds whole pages and events in memory, and gets what is kept of each
object."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from ...job.trimmed import trim
from ...kube.kinds import KINDS
from ...kube.pages import Lines, Page

_CHUNK = 1 << 18
_NAMED = {plural: {"apiVersion": version, "kind": kind} for kind, (version, plural) in KINDS.items()}
"""Version and kind by the end of a list's path."""


class WatchSession:
    """The part of an aiohttp session that kopf uses. After `close` the next request opens another: at its end kopf
    closes the session before its watches, which otherwise would wait for new credentials for ever."""

    def __init__(
        self, headers: dict[str, str], connector: Callable[[], aiohttp.BaseConnector], **options: Any
    ) -> None:
        self.headers, self._connector, self._options = headers, connector, options
        self._open: aiohttp.ClientSession | None = None

    @property
    def closed(self) -> bool:
        return self._open is None or self._open.closed

    async def request(self, **request: Any) -> aiohttp.ClientResponse:
        if self._open is None:
            self._open = aiohttp.ClientSession(
                connector=self._connector(),
                headers=self.headers,
                response_class=TrimmedResponse,
                **self._options,
            )
        return await self._open.request(**request)

    async def close(self) -> None:
        ended, self._open = self._open, None
        if ended is not None:
            await ended.close()


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
        named = _NAMED.get(self.url.name, {})  # items of lists of Kubernetes' own kinds lack both
        page = Page(lambda item: trim({**named, **item}))
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
        lines = Lines(trim)
        async for data in self._content.iter_chunked(size):
            yield lines.feed(data)
        yield lines.end()
