"""Calls to a server's own paths from inside its process, as if a request had arrived."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from rlhf_api.host.tasks import end_all

from .guard import App, Receive, Scope, Send


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


async def stream(receive: Receive, send: Send, parts: AsyncIterator[bytes]) -> None:
    """Sends a response of binary parts as they come, and takes no more of them once the client has disconnected. Does
    what Starlette's StreamingResponse does, whose task group costs more than the tokens of a short response."""

    async def send_all() -> None:
        headers = [(b"content-type", b"application/octet-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def leave() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    sending, leaving = asyncio.ensure_future(send_all()), asyncio.ensure_future(leave())
    try:
        await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    finally:
        await end_all([sending, leaving])
