"""Serves the page and its API on loopback: one thread reads files, so that a slow disk holds no request's reply up but
those of the API."""

import asyncio
import hashlib
import logging
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json

from ..answers.paths import VERSION, answer
from ..folder.catalog import Catalog
from ..refusal import Refusal
from .security import protect
from .static_files import MISSING, find_assets

log = logging.getLogger(__name__)
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
    application = web.Application(middlewares=[protect(token, VERSION)], client_max_size=_LARGEST_BODY)
    application.router.add_get(f"{VERSION}/{{path:.*}}", partial(_reply, catalog, reader))
    application.router.add_get("/{path:.*}", _asset)
    return application


async def _reply(catalog: Catalog, reader: ThreadPoolExecutor, request: web.Request) -> web.Response:
    path, query = f"/{request.match_info['path']}", dict(request.query)
    status, body = await asyncio.get_running_loop().run_in_executor(reader, _body, catalog, path, query)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-store" if status != 200 else "private, no-cache"}
    if status == 200 and request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _body(catalog: Catalog, path: str, query: dict[str, str]) -> tuple[int, bytes]:
    """Status and JSON of a reply: what a file holds never ends the server, nor reaches the page as a traceback."""
    try:
        status, content = 200, answer(catalog, path, query)
    except Refusal as error:
        status, content = error.status, {"error": str(error)}
    except InvalidJob as error:
        status, content = 404, {"error": "; ".join(map(str, error.problems))}
    except Exception as error:
        log.warning("%s cannot be answered: %s: %s", path, type(error).__name__, error)
        status, content = 500, {"error": f"cannot be read: {type(error).__name__}"}
    return status, strict_json.dumps(content).encode()


async def _asset(request: web.Request) -> web.StreamResponse:
    assets = find_assets()
    if not assets:
        return web.Response(status=404, text=f"{MISSING}. The API is below {VERSION}.\n")
    asset = assets.get(request.path)
    if asset is None:
        return web.Response(status=404, text="no such file\n")
    return web.Response(
        body=asset.file.read_bytes(),
        headers={"Content-Type": asset.type, "Cache-Control": "no-cache"},
    )
