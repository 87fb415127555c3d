"""The middleware alone, and behind the server's own parsers of HTTP; test_serving.py knocks at every path of a real
server."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from rlhf_trainer.engines.vllm.front.guard import TokenGuard


def knock(path: str, authorization: bytes | None, kind: str = "http") -> list[dict]:
    """Sends a request to the guard; returns the replies. The application behind it replies with a message "in"."""

    async def application(_scope, _receive, send) -> None:
        await send({"type": "in"})

    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [] if authorization is None else [(b"authorization", authorization)]
    scope = {"type": kind, "path": path, "headers": headers}
    asyncio.run(TokenGuard(application)(scope, None, send))
    return sent


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/v1/completions", b"Bearer right", None),
        *((path, None, None) for path in ("/health", "/ready", "/live", "/drain", "/metrics")),
        ("/generate", None, 401),
        ("/v1/completions", None, 401),
        ("/v1/completions", b"Bearer wrong", 401),
        ("/v1/completions", b"Bearer right ", 401),
        ("/v1/completions", b"right", 401),
        ("/v1/completions", "Bearer rïght".encode(), 401),
        ("/health/", None, 401),
        ("/metrics/", None, 401),
        ("/ready/../pause", None, 401),
        ("/health/../pause", None, 401),
    ],
)
def test_who_may_pass(monkeypatch, path, authorization, status):
    monkeypatch.setenv("RLHF_TOKEN", "right")
    answer = knock(path, authorization)[0]
    assert answer.get("status") == status
    assert (answer["type"] == "in") == (status is None)


@pytest.mark.parametrize("token", [None, ""])
@pytest.mark.parametrize("authorization", [None, b"", b"Bearer ", b"Bearer", b"Bearer None"])
def test_without_a_token_in_the_environment_nobody_may_pass(monkeypatch, token, authorization):
    monkeypatch.delenv("RLHF_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("RLHF_TOKEN", token)
    assert knock("/pause", authorization)[0]["status"] == 401


def test_websockets_are_closed_and_the_lifespan_passes(monkeypatch):
    monkeypatch.setenv("RLHF_TOKEN", "right")
    assert knock("/v1/realtime", None, "websocket") == [{"type": "websocket.close", "code": 1008}]
    assert knock("", None, "lifespan") == [{"type": "in"}]


SECRET = b"only for those with the token"
TARGETS = (
    *("/collective_rpc", "/health/../collective_rpc", "/health%2f..%2fcollective_rpc", "//collective_rpc"),
    *("/metrics/../collective_rpc", "/HEALTH", "http://x/health/../server_info", "/docs", "/openapi.json"),
    *("/tokenize", "/load_lora_adapter", "/server_info", "*", "/metrics/x", "/health;/server_info"),
    *("/health?/server_info", "/%68ealth", "/health%00", "/health#/server_info"),
)
HEADERS = (
    b"",
    b"Authorization: Bearer \r\n",
    b"X-Forwarded-Prefix: /health\r\n",
    b"X-Original-URL: /health\r\n",
)
HEAD = b" HTTP/1.1\r\nHost: x\r\n"
SMUGGLED = (
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /server_info" + HEAD + b"\r\n"
)
UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


@contextmanager
def served(parser: str) -> Iterator[int]:
    """The port of an application of routes like vLLM's behind the guard."""

    async def secret(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(SECRET)

    async def health(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("well")

    async def realtime(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_bytes(SECRET)

    app = Starlette(
        routes=[
            Route("/health", health, methods=["GET", "POST"]),
            Mount("/metrics", health),
            WebSocketRoute("/v1/realtime", realtime),
            Route("/{path:path}", secret, methods=["GET", "POST"]),
        ]
    )
    config = uvicorn.Config(TokenGuard(app), log_level="error", http=parser, lifespan="off")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


def ask(port: int, raw: bytes, end: bool = True) -> bytes:
    """The answer to raw bytes, after which the sender closes its side, up to the end of the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), 60) as connection, suppress(ConnectionError):
        connection.sendall(raw)
        if end:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            answer += part
    return answer


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_no_way_of_writing_a_request_passes_without_the_token(monkeypatch, parser):
    monkeypatch.setenv("RLHF_TOKEN", "right")
    close = HEAD + b"Connection: close\r\n"
    with served(parser) as port:
        for target in TARGETS:
            for header in HEADERS:
                answer = ask(port, b"GET " + target.encode() + close + header + b"\r\n", end=False)
                assert SECRET not in answer, (target, header)
        assert ask(port, b"GET /health" + close + b"\r\n", end=False).endswith(b"well")
        assert SECRET in ask(port, b"GET /x" + close + b"Authorization: Bearer right\r\n\r\n", end=False)
        assert SECRET not in ask(port, b"POST /health" + HEAD + SMUGGLED)
        refused = ask(port, b"GET /v1/realtime" + HEAD + UPGRADE + b"Sec-WebSocket-Version: 13\r\n\r\n")
        assert refused.startswith(b"HTTP/1.1 403 ")
