"""HTTP server of a worker: the OpenAI API of its programs' conversations, on this machine alone."""

import asyncio
import hmac
import json
import secrets
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import NamedTuple, Self

from aiohttp import web

from rlhf_api.host.printing import write_line

from .chat_request import ChatRequest, Refusal, read_request
from .conversation import Conversation, PendingTurn

HOST = "127.0.0.1"
LARGEST = 64 << 20
"""Bytes of a request: a whole conversation."""
WAIT_SECONDS = 15.0
"""Interval at which a client that waits gets a sign of life, so that no timeout of its reads ends its request."""
MODEL = "policy"


class Access(NamedTuple):
    """A program's address and key."""

    url: str
    key: str


class CompletionsServer:
    """Listens from `__aenter__` on. Each conversation has a path and a key of its own."""

    def __init__(self) -> None:
        self._open = dict[str, tuple[Conversation, str]]()
        self._free = list[tuple[str, str]]()
        """Paths and keys of episodes that have ended: clients that are kept for an access are not ever more."""
        self._numbers, self._warned = count(), set[str]()
        app = web.Application(client_max_size=LARGEST)
        app.router.add_post("/{number}/v1/chat/completions", self._complete)
        app.router.add_get("/{number}/v1/models", self._list_models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        self._url = ""

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, 0)
        await site.start()
        _, port = self._runner.addresses[0][:2]
        self._url = f"http://{HOST}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @asynccontextmanager
    async def serving(self, conversation: Conversation) -> AsyncIterator[Access]:
        """Meanwhile a program with this access may ask."""
        new = not self._free
        number, key = (str(next(self._numbers)), f"sk-{secrets.token_hex(16)}") if new else self._free.pop()
        self._open[number] = conversation, key
        try:
            yield Access(f"{self._url}/{number}/v1", key)
        finally:
            del self._open[number]
            self._free.append((number, key))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            conversation = self._conversation(request)
            chat = read_request(await request.read())
            pending = conversation.ask(chat)
        except Refusal as error:
            return _refused(error)
        self._warn(chat.ignored)
        try:
            return await _answer(request, chat, pending)
        except BaseException:  # its connection is closed
            pending.is_open = False
            raise

    async def _list_models(self, request: web.Request) -> web.StreamResponse:
        try:
            self._conversation(request)
        except Refusal as error:
            return _refused(error)
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": "rlhf"}
        return web.json_response({"object": "list", "data": [model]})

    def _conversation(self, request: web.Request) -> Conversation:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        conversation, key = self._open.get(request.match_info["number"], (None, ""))
        if conversation is None or not hmac.compare_digest(given, key.encode()):
            raise Refusal(
                401, "there is no such episode, or it has another key; use OPENAI_BASE_URL and OPENAI_API_KEY"
            )
        return conversation

    def _warn(self, ignored: Iterable[str]) -> None:
        """Names each field once."""
        if new := sorted({*ignored} - self._warned):
            self._warned.update(new)
            message = "have no effect: turns are sampled as spec.sampling says"
            write_line(
                f"warning: requests of spec.environment.program have {', '.join(new)}, which {message}",
                sys.stderr,
            )


async def _answer(request: web.Request, chat: ChatRequest, pending: PendingTurn) -> web.StreamResponse:
    """Writes the reply once it is there, and before that spaces or comments. Raises ConnectionError where the client
    is not there any more."""
    kind = "text/event-stream" if chat.stream else "application/json"
    response = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-cache"})
    while not (await asyncio.wait([pending.reply], timeout=WAIT_SECONDS))[0]:
        if not response.prepared:
            await response.prepare(request)
        await response.write(b": waiting\n\n" if chat.stream else b"\n")
    try:
        completion = pending.reply.result()
    except Refusal as error:
        if response.prepared:
            raise ConnectionResetError(str(error)) from None
        return _refused(error)
    if not response.prepared:
        await response.prepare(request)
    model = chat.model or MODEL
    events = (
        completion.events(model, with_usage=chat.with_usage) if chat.stream else [completion.whole(model)]
    )
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response


def _refused(error: Refusal) -> web.Response:
    """In the form of OpenAI's errors; a client would only try again in vain."""
    body = {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}}
    headers = {"x-should-retry": "false"}
    return web.Response(
        status=error.status, text=json.dumps(body), content_type="application/json", headers=headers
    )
