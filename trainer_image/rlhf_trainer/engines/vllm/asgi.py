"""A server's own paths, called from inside of it as if a request had come in."""

import asyncio
import json
from typing import Any

from .guard import App, Receive, Scope


async def call(app: App, scope: Scope, method: str, path: str, body: Any = None) -> Any:
    """The JSON that `app` answers, to a request like that of `scope` otherwise. Raises ValueError where the answer is
    not 200, and whatever a server raises whose engine is dead."""
    data = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    asked = {**scope, "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    sent: list[Any] = []
    given = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> Any:
        return given.pop() if given else await asyncio.Event().wait()  # nobody hangs up

    async def send(message: Any) -> None:
        sent.append(message)

    await app({**asked, "headers": headers}, receive, send)
    text = b"".join(message.get("body", b"") for message in sent)
    if sent[0]["status"] != 200:
        raise ValueError(f"HTTP {sent[0]['status']} to {path}: {text[:200].decode(errors='replace')}")
    return json.loads(text)


async def reply(send: Any, status: int, answer: Any) -> None:
    """All of a response, as JSON."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def body(receive: Receive) -> bytes:
    """All of a request's body."""
    parts, more = [], True
    while more:
        message = await receive()
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(parts)
