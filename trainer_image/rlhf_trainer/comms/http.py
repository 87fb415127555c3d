"""HTTP from the training thread: one aiohttp session on an event loop of its own thread."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp


class HttpError(RuntimeError):
    """An answer other than 200: `status` is its code, `body` the beginning of its text."""

    def __init__(self, url: str, status: int, body: str) -> None:
        super().__init__(f"{url}: HTTP {status}: {body}")
        self.status, self.body = status, body


@contextmanager
def _without_headers(url: str) -> Iterator[None]:
    """What is no HTTP becomes an error that can be logged: aiohttp's own shows the request's headers, token and all."""
    try:
        yield
    except aiohttp.ClientResponseError as error:
        raise aiohttp.ClientPayloadError(f"{url}: {error.message}") from None


class Background:
    """An event loop on a daemon thread with an aiohttp session that carries the job's token.

    The training thread hands coroutines over with `run` (wait for the result) or `start` (do not wait).
    """

    def __init__(self, token: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="http", daemon=True)
        self._thread.start()
        self.session: aiohttp.ClientSession = self.run(self._open(token))

    @staticmethod
    async def _open(token: str) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"},
            # Shorter than any server's own: a connection that it just closed is never picked for a request.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        )

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> "concurrent.futures.Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.start(coroutine).result()

    async def json(self, method: str, url: str, body: Any = None, *, timeout: float) -> Any:
        """The JSON answer, or None where the body is empty.

        Raises:
            HttpError: the answer was not 200.
            TimeoutError, aiohttp.ClientError: no answer within `timeout` seconds, or no connection.
        """
        limit = aiohttp.ClientTimeout(total=timeout)
        with _without_headers(url):
            async with self.session.request(method, url, json=body, timeout=limit) as response:
                if response.status != 200:
                    raise HttpError(url, response.status, (await response.text())[:2000])
                return await response.json(content_type=None) if (await response.read()) else None

    async def post_bytes(self, url: str, body: bytes, *, timeout: float) -> bytes:
        """POST raw bytes, return raw bytes; raises as `json` does."""
        limit = aiohttp.ClientTimeout(total=timeout)
        with _without_headers(url):
            async with self.session.post(url, data=body, timeout=limit) as response:
                if response.status != 200:
                    raise HttpError(url, response.status, (await response.text())[:2000])
                return await response.read()

    def close(self) -> None:
        self.run(self.session.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
