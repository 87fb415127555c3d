"""The middleware alone; test_serving.py knocks at every path of a real server."""

import asyncio

import pytest

from rlhf_trainer.engines.vllm.guard import TokenGuard


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
