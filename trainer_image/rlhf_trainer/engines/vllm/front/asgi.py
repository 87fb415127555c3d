"""Calls to a server's own paths from inside its process, as if a request had arrived."""

import asyncio
import json
from typing import Any

from .guard import App, Receive, Scope


async def call(app: App, scope: Scope, method: str, path: str, body: Any = None) -> Any:
    """JSON reply of `app` to a request that otherwise has the `scope` given. Raises ValueError where the reply is not
    200, and whatever a server raises whose engine is dead."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    request_scope = {**scope, "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    sent: list[Any] = []
    given = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        return given.pop() if given else await asyncio.Event().wait()  # no disconnects here

    async def send(message: Any) -> None:
        sent.append(message)

    await app({**request_scope, "headers": headers}, receive, send)
    text = b"".join(message.get("body", b"") for message in sent)
    if sent[0]["status"] != 200:
        raise ValueError(f"HTTP {sent[0]['status']} to {path}: {text[:200].decode(errors='replace')}")
    return json.loads(text)


async def reply(send: Any, status: int, answer: Any) -> None:
    """Sends a whole response, as JSON."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def body(receive: Receive) -> bytes:
    """Reads a request's whole body."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
