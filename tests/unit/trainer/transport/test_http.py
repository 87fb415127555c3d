"""The training thread's HTTP client against servers that break the protocol."""

import asyncio
import contextlib
import gzip
import json
import logging
import resource
import socket
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.ports import free_port
from tests.support.proving import proving_by

from rlhf_api.contract.proof import PROOF, Prover
from rlhf_api.roles import HEALTH
from rlhf_trainer.dispatch.control import token_required
from rlhf_trainer.transport import http as module
from rlhf_trainer.transport.http import HttpClient, HttpError


async def stream(http: HttpClient, url: str) -> bytes:
    return b"".join([part async for part in http.stream(url, {})])


@pytest.mark.parametrize(
    "answer", [b"not HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
def test_no_error_shows_the_token(answer):
    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    with HttpClient("secret-of-the-job") as http:
        server = http.run(asyncio.start_server(speak, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        for request in (
            http.json("POST", url, {}, timeout=120),
            http.post_bytes(url, b"", 1000),
            stream(http, url),
        ):
            with pytest.raises(aiohttp.ClientError) as caught:
                http.run(request)
            assert "secret-of-the-job" not in repr(caught.value)
            assert url in str(caught.value)
            assert caught.value.__cause__ is None


def test_a_connection_has_a_deadline_of_its_own_whatever_its_request_has(monkeypatch):
    """The address of a node that is gone takes no connection and refuses none."""
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.3)
    with socket.socket() as full, HttpClient("token") as http:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        with socket.create_connection(full.getsockname()):  # the one that waits to be accepted
            for request in (
                http.json("GET", url, timeout=120),
                http.post_bytes(url, b"", 1000),
                stream(http, url),
            ):
                with pytest.raises(aiohttp.ConnectionTimeoutError):
                    http.run(asyncio.wait_for(request, 120))


def test_of_an_error_s_text_only_the_start_is_read():
    """However much there is of it: here it never ends."""

    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 500 X\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"400\r\n" + b"\xff" * 1024 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)

    with HttpClient("token") as http:
        server = http.run(asyncio.start_server(speak, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{HEALTH}"
        for request in (
            http.json("GET", url, timeout=60),
            http.post_bytes(url, b"", 1000),
            stream(http, url),
        ):
            with pytest.raises(HttpError) as caught:
                http.run(asyncio.wait_for(request, 60))
            assert (caught.value.status, caught.value.body) == (500, "\ufffd" * module.ERROR_BYTES)


def served(http: HttpClient, **reply: Any) -> str:
    """The URL of a server that replies so to everything."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(**reply)

    app = web.Application(middlewares=[proving_by("token")])
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    runner = web.AppRunner(app)
    http.run(runner.setup())
    http.run(web.TCPSite(runner, "127.0.0.1", 0).start())
    return f"http://127.0.0.1:{runner.addresses[0][1]}/"


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "identity, gzip"])
def test_what_inflates_is_refused_before_it_does(coding):
    """A few bytes of gzip may hold gigabytes."""
    with HttpClient("token") as http:
        url = served(http, body=gzip.compress(bytes(1 << 20)), headers={"Content-Encoding": coding})
        for request in (
            http.json("GET", url, timeout=60),
            http.post_bytes(url, b"", 1 << 30),
            stream(http, url),
        ):
            with pytest.raises(aiohttp.ClientPayloadError, match=f"compressed with '{coding}'"):
                http.run(request)


def test_no_more_is_read_of_a_reply_than_it_may_have():
    with HttpClient("token") as http:
        url = served(http, body=bytes(1001))
        with pytest.raises(aiohttp.ClientPayloadError, match="the reply is longer than 1000 bytes"):
            http.run(http.post_bytes(url, b"", 1000))
        assert http.run(http.post_bytes(url, b"", 1001)) == bytes(1001)
        url = served(http, body=b" " * (module.JSON_BYTES + 1))
        with pytest.raises(aiohttp.ClientPayloadError, match=f"longer than {module.JSON_BYTES} bytes"):
            http.run(http.json("GET", url, timeout=60))


def test_a_redirect_is_not_followed():
    """It would have the token, and the reply, go elsewhere."""
    with HttpClient("token") as http:
        url = served(http, status=307, headers={"Location": served(http, text="{}")})
        for request in (
            http.json("POST", url, {}, timeout=60),
            http.post_bytes(url, b"", 9),
            stream(http, url),
        ):
            with pytest.raises(HttpError, match="HTTP 307"):
                http.run(request)


@pytest.mark.parametrize(("status", "after"), [(429, "7"), (408, ""), (429, "soon")])
def test_a_busy_server_is_asked_again_when_it_says(status, after, monkeypatch):
    """The wait is as long as `Retry-After` says, or a second. Each of the requests is refused twice."""
    left, waits, sleep = [6], list[float](), asyncio.sleep

    async def recorded(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    async def answer(_request: web.Request) -> web.Response:
        left[0] -= 1
        return web.Response(text="done") if left[0] % 3 == 0 else busy()

    def busy() -> web.Response:
        return web.Response(status=status, headers={"Retry-After": after})

    app = web.Application(middlewares=[proving_by("token")])
    app.add_routes([web.post("/", answer)])
    runner = web.AppRunner(app)
    with HttpClient("token") as http:
        http.run(runner.setup())
        http.run(web.TCPSite(runner, "127.0.0.1", 0).start())
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        monkeypatch.setattr(asyncio, "sleep", recorded)
        assert http.run(http.post_bytes(url, b"", 1000)) == b"done"
        assert http.run(stream(http, url)) == b"done"
        monkeypatch.undo()
    assert waits == [7.0 if after == "7" else 1.0] * 4


class Counting:
    """A server that holds every request until all that are wanted are here, and counts those at once."""

    def __init__(self, http: HttpClient, expected: int) -> None:
        self.now = self.highest = 0
        self._enough, self._expected = asyncio.Event(), expected
        app = web.Application(middlewares=[proving_by("token")])
        app.add_routes([web.route("*", "/{path:.*}", self._hold)])
        self._runner = web.AppRunner(app)
        http.run(self._runner.setup())
        http.run(web.TCPSite(self._runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"

    async def _hold(self, _request: web.Request) -> web.StreamResponse:
        self.now += 1
        self.highest = max(self.highest, self.now)
        if self.now == self._expected:
            self._enough.set()
        await self._enough.wait()
        await asyncio.sleep(0.01)
        self.now -= 1
        return web.Response(text="1")


def test_calls_share_so_many_connections_to_a_server_and_streams_none_of_them():
    calls = module.CALLS_PER_SERVER
    with HttpClient("token") as http:
        server = Counting(http, calls + 5)

        async def ask() -> tuple[list, list]:
            streams = [asyncio.ensure_future(stream(http, server.url)) for _ in range(5)]
            waiting = [http.json("GET", server.url + "x", timeout=120) for _ in range(3 * calls)]
            await asyncio.gather(*waiting, return_exceptions=True)
            return await asyncio.gather(*streams), waiting

        assert http.run(ask())[0] == [b"1"] * 5
        assert server.highest == calls + 5


FEW_FILES = """
import asyncio, json, logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
from rlhf_trainer.transport.http import HttpClient, HttpError

async def ask(http, url):
    return [part async for part in http.stream(url, {})]

async def all_of(http):
    return await asyncio.gather(*(ask(http, url) for url in sys.argv[1:] for _ in range(256)))

with HttpClient("token") as http:
    answers = http.run(all_of(http))
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE), len(answers)]))
"""


def test_four_generators_with_256_requests_each_do_with_few_open_files():
    """The soft limit is raised, as the log says; what is still too much waits for a connection, and fails nobody."""
    with HttpClient("token") as http:
        urls = [Counting(http, 8).url for _ in range(4)]
        done = subprocess.run(
            [sys.executable, "-c", FEW_FILES, *urls], capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[256, 256], 4 * 256]
    assert "raised the limit of open files to 256, from 64" in done.stderr


def test_where_the_limit_of_files_cannot_be_raised_the_log_says_so(monkeypatch, caplog):
    def refuse(*_limit: object) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with caplog.at_level(logging.WARNING):
        assert module.raise_file_limit() == 1024
    assert "the limit of open files, 1024, cannot be raised to 4096: not allowed" in caplog.text


def test_a_server_that_ends_the_connection_after_an_error_s_reply_is_asked_again_on_another():
    """Starlette closes the connection after each 500, once the reply is complete."""
    replied: list[bytes] = []

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        first = not replied
        replied.append(b"HTTP/1.1 500 \r\n" if first else b"HTTP/1.1 200 OK\r\n")
        writer.write(replied[-1] + b"Content-Length: 4\r\n\r\nnull")
        if first:
            await reader.read()  # whatever is sent on it now is lost
        writer.close()

    with HttpClient("token") as http:
        server = http.run(asyncio.start_server(speak, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{HEALTH}"
        with pytest.raises(HttpError, match="500"):
            http.run(http.json("POST", url, {}, timeout=120))
        assert http.run(http.json("POST", url, {}, timeout=120)) is None
        server.close()


class Recorded:
    """A process of the job at a port, or a stranger, which has no token; `sent` and `keys`: path and body, and key, of
    each request."""

    def __init__(self, http: HttpClient, port: int, token: str) -> None:
        self.prover, self.sent = Prover(token, "127.0.0.1", port), list[tuple[str, bytes]]()
        self.keys = list[str | None]()
        self._http, self._port = http, port
        self._proves = bool(token)
        self.starts_anew = False
        """At its next proof: who asks for it gets a key that is not this process's."""
        app = web.Application(middlewares=[self._record])
        app.add_routes([web.route("*", "/{path:.*}", self._echo)])
        self._runner = web.AppRunner(app)

    def __enter__(self) -> "Recorded":
        self._http.run(self._runner.setup())
        self._http.run(web.TCPSite(self._runner, "127.0.0.1", self._port).start())
        return self

    def __exit__(self, *_: object) -> None:
        self._http.run(self._runner.cleanup())

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.sent.append((request.path, await request.read()))
        self.keys.append(request.headers.get("Authorization"))
        if not self._proves:
            return web.json_response({"nonce": "0" * 32, "proof": "0" * 64})
        reply: web.StreamResponse = await token_required(self.prover)(request, handler)
        if self.starts_anew:
            self.starts_anew, self.prover = False, Prover("token", "127.0.0.1", self._port)
        return reply

    @staticmethod
    async def _echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read(), content_type="application/json")


def requests_of_all_kinds(http: HttpClient, url: str) -> tuple[Coroutine[Any, Any, Any], ...]:
    return http.json("POST", url, {}, timeout=60), http.post_bytes(url, b"{}", 1000), stream(http, url)


QUESTION, REQUEST = (PROOF, b""), ("/", b"{}")


def test_a_squatter_of_a_servers_port_is_sent_nothing_but_questions():
    """Also one that takes the port of a server that has proven itself and is gone."""
    url = f"http://127.0.0.1:{(port := free_port())}/"
    with HttpClient("token") as http:
        with Recorded(http, port, "token") as server:
            for request in requests_of_all_kinds(http, url):
                http.run(request)
        assert server.sent == [QUESTION, REQUEST] * 3
        with Recorded(http, port, "") as stranger:
            for request in requests_of_all_kinds(http, url):
                with pytest.raises(
                    aiohttp.ClientError, match="what answers there does not have the job's token"
                ):
                    http.run(request)
            assert http.run(http.listens(url.rstrip("/")))
        assert stranger.sent == [*[QUESTION] * 3, (HEALTH, b"")]
        assert stranger.keys == [None] * 4


def test_a_server_is_asked_for_its_proof_before_each_request_and_again_when_it_starts_anew():
    async def together(http: HttpClient, count: int) -> list[Any]:
        return await asyncio.gather(*(http.json("POST", url, {}, timeout=60) for _ in range(count)))

    url = f"http://127.0.0.1:{(port := free_port())}/"
    with HttpClient("token") as http, Recorded(http, port, "token") as server:
        assert http.run(together(http, 9)) == [{}] * 9
        assert server.sent == [QUESTION, *[REQUEST] * 9], "those that wait at once share a proof"
        server.sent.clear()
        server.starts_anew = True
        assert http.run(together(http, 1)) == [{}]
        assert server.sent == [QUESTION, REQUEST] * 2


def test_a_stream_that_waits_for_a_slot_asks_for_its_proof_after_it(monkeypatch):
    """A server's port may be a stranger's by the time that an earlier stream ends."""
    monkeypatch.setattr(module, "raise_file_limit", lambda: 2)
    url = f"http://127.0.0.1:{(port := free_port())}/"

    async def together(http: HttpClient) -> list[bytes]:
        return await asyncio.gather(*(stream(http, url) for _ in range(3)))

    with HttpClient("token") as http, Recorded(http, port, "token") as server:
        assert http.run(together(http)) == [b"{}"] * 3
        assert server.sent == [QUESTION, REQUEST] * 3
