"""HTTP client of the training thread: aiohttp sessions on an event loop of their own."""

import asyncio
import json
import logging
import resource
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Self

import aiohttp

from rlhf_api.host.event_loop import EventLoop
from rlhf_api.host.tasks import end_all
from rlhf_api.roles import HEALTH

from .keys import Keys
from .replies import PLAIN, check_plain, read_reply, read_start, retry_after

log = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
"""Connect deadline, seconds, independent of the request's own."""
PROOF_SECONDS = 30.0
"""Deadline of a server's proof, seconds."""
CALLS_PER_SERVER = 32
"""Connections per server, streams excluded; further calls are queued."""
PROBE_SECONDS = 2.0
ERROR_BYTES = 2000
"""Bytes read of an error's text."""
JSON_BYTES = 1 << 20
"""Maximum size of a reply of JSON, which has a few numbers for each worker."""
MOST_FILES = 1 << 16
"""Open-file limit to request where the hard limit is higher or absent."""
BUSY = (408, 429)
"""Statuses with which a server, or a gateway in front of it, takes a request later."""
BUSY_SECONDS = 1.0
"""Shortest wait before a busy server is asked again, seconds."""
BUSY_LOG_SECONDS = 60.0
"""Interval of the log lines about one that stays busy, seconds."""


EPOCH_HEADER = "x-trainer-epoch"
"""Request header: the epoch of the trainer that asks, which grows from trainer to trainer of a run."""
DEPOSED = 412
"""Status of a reply to a trainer of an earlier epoch than another one that the server has heard of."""


class Deposed(RuntimeError):
    """A server works for a later trainer of this run: this one must not go on."""


class HttpError(RuntimeError):
    """Reply with a status other than 200: `status` is its code, `body` the start of its text."""

    def __init__(self, url: str, status: int, body: str) -> None:
        super().__init__(f"{url}: HTTP {status}: {body}")
        self.status, self.body = status, body

    @property
    def of_request(self) -> bool:
        """True if every server would refuse the request. 404 is also a gateway's whose server is gone."""
        return 400 <= self.status < 500 and self.status != 404


@contextmanager
def _without_headers(url: str) -> Iterator[None]:
    """Replaces aiohttp's errors about malformed replies, which would log the request's headers with the key."""
    try:
        yield
    except aiohttp.ClientResponseError as error:
        raise aiohttp.ClientPayloadError(f"{url}: {error.message}") from None


class HttpClient(EventLoop):
    """Rank 0's HTTP requests, each on a connection of its own and with its server's key. Streams, which last as long as
    a response is generated or scored, have their own pool, so that calls never wait for them."""

    def __init__(self, token: str) -> None:
        files = raise_file_limit()
        super().__init__("http")
        self.session: aiohttp.ClientSession
        self._streams: aiohttp.ClientSession
        self.session, self._streams = self.run(_sessions(token))
        self._slots = asyncio.Semaphore(max(1, files // 2))
        """Of streams: further ones wait, before their servers are asked for proofs, which age."""
        self._busy: dict[str, float] = {}
        """Time of the last log line about a URL whose server is busy."""

    def claim(self, epoch: int) -> None:
        """Has each request from now on carry `epoch`: servers refuse trainers of earlier ones, whose calls then raise
        Deposed."""
        for session in (self.session, self._streams):
            session.headers[EPOCH_HEADER] = str(epoch)

    async def json(self, method: str, url: str, body: Any = None, *, timeout: float) -> Any:
        """The JSON of the reply, or None where its body is empty.

        Raises:
            HttpError: the reply was not 200.
            TimeoutError, aiohttp.ClientError: no reply within `timeout` seconds, no connection, or too long a reply.
        ValueError: it is not JSON.
        """
        with _without_headers(url):
            async with self.session.request(
                method, url, json=body, timeout=_deadline(timeout), allow_redirects=False
            ) as response:
                await _check(url, response)
                text = await read_reply(response, JSON_BYTES)
                return json.loads(text) if text else None

    async def post_bytes(self, url: str, body: bytes, most: int) -> bytes:
        """POST raw bytes, again while the server is BUSY; returns the reply's, `most` at most. Without a deadline, and
        in the pool of the streams: a server may be asked for many at once that it waits for. Raises as `json`."""
        with _without_headers(url):
            async with self._accepted(url, data=body) as response:
                return await read_reply(response, most)

    async def stream(self, url: str, body: Any) -> AsyncGenerator[bytes, None]:
        """POST JSON, again while the server is BUSY; yields the reply's bytes as they arrive, without a deadline.

        Raises HttpError and aiohttp.ClientError as `json` does. Close the generator to stop early: that closes the
        connection and so cancels the server's work.
        """
        with _without_headers(url):
            async with self._accepted(url, json=body) as response:
                async for part in response.content.iter_any():
                    yield part

    @asynccontextmanager
    async def _accepted(self, url: str, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """The reply to a POST, made again while the server is BUSY, after `Retry-After` if it gives one. Without a
        deadline: the caller has one on progress."""
        while True:
            async with self._slots, self._streams.post(url, allow_redirects=False, **body) as response:
                if response.status not in BUSY:
                    await _check(url, response)
                    yield response
                    return
                pause = max(BUSY_SECONDS, retry_after(response.headers.get("Retry-After", ""), time.time()))
            if time.monotonic() > self._busy.get(url, -BUSY_LOG_SECONDS) + BUSY_LOG_SECONDS:
                self._busy[url] = time.monotonic()
                log.warning("%s: HTTP %d; asked again in %.0f s", url, response.status, pause)
            await asyncio.sleep(pause)

    async def listens(self, address: str) -> bool:
        """False only if the connection is refused: a busy server may reply late."""
        try:
            await self.json("GET", address + HEALTH, timeout=PROBE_SECONDS)
        except aiohttp.ClientConnectorError:
            return False
        except (HttpError, TimeoutError, aiohttp.ClientError, ValueError):
            pass
        return True

    def close(self) -> None:
        """Cancels all requests."""
        self.run(_end(self.session, self._streams))
        super().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _end(*sessions: aiohttp.ClientSession) -> None:
    """Cancels all other tasks, waits for their ends, and closes the sessions."""
    await end_all(asyncio.all_tasks() - {asyncio.current_task()})
    for session in sessions:
        await session.close()


async def _sessions(token: str) -> tuple[aiohttp.ClientSession, aiohttp.ClientSession]:
    """Sessions for calls and for streams."""
    connectors = (
        # One connection per request: a kept-alive one may be closed by its server (idle timeout, or after an error's
        # reply) just as the next request is sent on it. Kept-alive ones would also be open files that no limit counts.
        aiohttp.TCPConnector(limit=0, limit_per_host=CALLS_PER_SERVER, force_close=True),
        aiohttp.TCPConnector(limit=0, force_close=True),
    )
    keys = Keys(token, _deadline(PROOF_SECONDS))
    calls, streaming = (
        aiohttp.ClientSession(
            headers=PLAIN,
            connector=connector,
            timeout=_deadline(None),
            auto_decompress=False,
            middlewares=(keys,),
        )
        for connector in connectors
    )
    return calls, streaming


def raise_file_limit() -> int:
    """Raises the soft limit of open files towards the hard one; returns the new soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY:
        return MOST_FILES
    if soft < target:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (OSError, ValueError) as error:
            log.warning("the limit of open files, %d, cannot be raised to %d: %s", soft, target, error)
            return soft
        log.info("raised the limit of open files to %d, from %d", target, soft)
    return max(soft, target)


def _deadline(seconds: float | None) -> aiohttp.ClientTimeout:
    """Timeouts of one request; the connect deadline is repeated, because they replace the session's."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)


async def _check(url: str, response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        check_plain(response)
        return
    text = (await read_start(response, ERROR_BYTES)).decode(errors="replace")
    if response.status == DEPOSED:
        raise Deposed(f"a later trainer of this run has taken over, and this one ends: {url}: {text}")
    raise HttpError(url, response.status, text)
