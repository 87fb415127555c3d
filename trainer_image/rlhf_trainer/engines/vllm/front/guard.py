"""Check of the process's key in front of a vLLM server, whose own `--api-key` leaves the administrative paths open."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from rlhf_api.contract.proof import PROOF, Prover

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Kubelet probes send no token, nor does a Prometheus that scrapes all jobs: each job has its own token.
OPEN_PATHS = ("/health", "/ready", "/live", "/drain", "/metrics")


class TokenGuard:
    """ASGI middleware: every path but OPEN_PATHS needs this process's key, else 401; answers who asks for its proof.
    Without RLHF_TOKEN in the environment they are all refused."""

    def __init__(self, app: App) -> None:
        self.app = app
        of = os.environ.get
        self.prover = Prover(of("RLHF_TOKEN", ""), of("RLHF_HOST", ""), int(of("RLHF_PORT", "0")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif answer := self._answer(scope):
            await _reply(send, 200, answer)
        else:
            await _reply(send, 401, '{"error": "the header Authorization: Bearer <key> is missing or wrong"}')

    def _allowed(self, scope: Scope) -> bool:
        return self.prover.admits(dict(scope["headers"]).get(b"authorization", b""))

    def _answer(self, scope: Scope) -> str | None:
        """The proof that is asked for, if one is."""
        if scope.get("path") != PROOF:
            return None
        (nonce,) = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("nonce", [""])[:1]
        return self.prover.answer(nonce)


async def _reply(send: Send, status: int, body: str) -> None:
    headers = [
        (b"content-type", b"application/json"),
        *([(b"www-authenticate", b"Bearer")] if status == 401 else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})
