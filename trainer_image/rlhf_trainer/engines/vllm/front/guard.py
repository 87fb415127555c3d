"""Bearer-token check in front of a vLLM server, whose own `--api-key` leaves the administrative paths open."""

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Kubelet probes send no token, nor does a Prometheus that scrapes all jobs: each job has its own token.
OPEN_PATHS = ("/health", "/ready", "/live", "/drain", "/metrics")


class TokenGuard:
    """ASGI middleware: every path but OPEN_PATHS needs `Authorization: Bearer $RLHF_TOKEN`, else 401. Without
    RLHF_TOKEN in the environment they are all refused."""

    def __init__(self, app: App) -> None:
        self.app = app
        token = os.environ.get("RLHF_TOKEN", "")
        self.expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS or self._allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = b'{"error": "the header Authorization: Bearer <token of the job> is missing or wrong"}'
            await send({"type": "http.response.body", "body": body})

    def _allowed(self, scope: Scope) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return self.expected is not None and hmac.compare_digest(given, self.expected)
