"""Serves the page and its API on loopback: one thread reads files, so that a slow disk holds no request's reply up but
those of the API."""

import asyncio
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from rlhf_api.errors.problem import InvalidJob, Problem

from ..answers.paths import VERSION, answer
from ..folder.catalog import Catalog
from .replies import reply_with, send_asset
from .security import is_loopback, protect, require_token

HOST = "127.0.0.1"
_CLOSE_SECONDS = 1.0
_BACKLOG = 64
_LARGEST_BODY = 1024
"""Of a request, which needs none."""


def listen(port: int) -> socket.socket:
    """A socket that listens on loopback; `port` 0: any free one. Raises InvalidJob if the port is taken."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise InvalidJob([Problem("--port", f"{HOST}:{port}: {error.strerror}")]) from error
    return listener


def address_of(listener: socket.socket, token: str) -> str:
    """The address of the page, with the token."""
    return f"http://{HOST}:{listener.getsockname()[1]}/#token={token}"


@asynccontextmanager
async def serving(catalog: Catalog, token: str, listener: socket.socket) -> AsyncIterator[None]:
    """Serves inside the context to those who have the token, and closes the socket."""
    with ThreadPoolExecutor(1, "page-reader") as reader:
        runner = web.AppRunner(
            _application(catalog, token, reader), access_log=None, shutdown_timeout=_CLOSE_SECONDS
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            yield
        finally:
            await runner.cleanup()


def _application(catalog: Catalog, token: str, reader: ThreadPoolExecutor) -> web.Application:
    async def reply(request: web.Request) -> web.Response:
        path, query = f"/{request.match_info['path']}", dict(request.query)
        answered = partial(answer, catalog, path, query)
        return await reply_with(request, lambda: asyncio.get_running_loop().run_in_executor(reader, answered))

    application = web.Application(
        middlewares=[protect(is_loopback), require_token(token, VERSION)], client_max_size=_LARGEST_BODY
    )
    application.router.add_get(f"{VERSION}/{{path:.*}}", reply)
    application.router.add_get("/{path:.*}", send_asset)
    return application
