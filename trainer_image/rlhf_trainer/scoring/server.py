"""HTTP server of the reward and reference roles: one POST route over the wire format, and a health check."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from rlhf_api.contract.proof import Prover
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import HEALTH

from ..dispatch.control import token_required
from ..ranks.ranks import Message
from ..transport.wire import WireError, decode, encode

log = logging.getLogger(__name__)

Score = Callable[[Message], Message]
Waits = Callable[[Message], Awaitable[Message] | None]
MAX_REQUEST_BYTES = 1 << 30


def computes(_message: Message) -> None:
    """`waits` of a server whose messages all compute."""


def no_trouble() -> str:
    """`trouble` of a server that works in its own process: none. Its health check fails only by its deadline."""
    return ""


def application(
    route: str,
    score: Score,
    prover: Prover,
    trouble: Callable[[], str] = no_trouble,
    *,
    waits: Waits = computes,
    deadline: float = math.inf,
) -> web.Application:
    """`POST route` scores a message: those that `waits` takes all at once, the others one at a time by `score`; the
    health check fails if `trouble` returns a reason, or while `score` takes more than `deadline` seconds for one, after
    which the trainer waits for it no more.

    InvalidJob is answered with 422, an invalid message with 400, any other error with 500 and its name. Run it with
    `handler_cancellation`, so that requests of clients that have disconnected are not begun.
    """
    worker, begun = ThreadPoolExecutor(max_workers=1), list[float]()

    def timed(message: Message) -> Message:
        begun.append(time.monotonic())
        try:
            return score(message)
        finally:
            begun.clear()

    async def handle(request: web.Request) -> web.Response:
        try:
            message = decode(await request.read())
            reply = waits(message) or asyncio.get_running_loop().run_in_executor(worker, timed, message)
            result = await reply
        except WireError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except InvalidJob as error:
            raise web.HTTPUnprocessableEntity(text=str(error)) from None
        except Exception as error:
            log.exception("a message could not be scored")
            raise web.HTTPInternalServerError(text=f"{type(error).__name__}: {error}") from None
        return web.Response(body=encode(*result), content_type="application/octet-stream")

    async def health(_request: web.Request) -> web.Response:
        taken = time.monotonic() - max(begun, default=math.inf)
        reason = trouble() or (f"one message has taken {taken:.0f} s so far" if taken > deadline else "")
        return web.json_response({"status": reason or "ok"}, status=503 if reason else 200)

    app = web.Application(middlewares=[token_required(prover)], client_max_size=MAX_REQUEST_BYTES)
    app.add_routes([web.get(HEALTH, health), web.post(route, handle)])
    return app
