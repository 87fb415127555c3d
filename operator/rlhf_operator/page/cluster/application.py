"""The HTTP side of a cluster's page: whose request it is, which jobs it is about, and the reply."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web

from ...kube.api import Api
from ..answers.paths import VERSION
from ..refusal import Refusal
from ..serve.replies import reply_with, send_asset
from ..serve.security import is_loopback, protect
from .readers import Readers
from .settings import NAMESPACE, Settings
from .viewers import Viewers

PROBE = "/healthz"
_LARGEST_BODY = 1024
_FORGET_SECONDS = 60.0
"""From one look for viewers who have left to the next."""
_IDS = re.compile(r"/runs/([0-9a-f]{16})(?:/|$)")
_ID = re.compile(r"[0-9a-f]{16}")


def make_application(settings: Settings, connect: Callable[[str], Api]) -> web.Application:
    """The page's application. `connect`: the client of the API server with a viewer's token."""
    viewers, readers = Viewers(connect, settings.namespaces), Readers(settings.folder)

    async def answer(request: web.Request) -> web.Response:
        return await reply_with(request, lambda: _answer(request, viewers, readers))

    async def probe(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def forget() -> None:
        while True:
            await asyncio.sleep(_FORGET_SECONDS)
            readers.forget_unused()
            await viewers.forget_unused()

    async def closing(_application: web.Application) -> AsyncIterator[None]:
        forgetting = asyncio.create_task(forget())
        yield
        forgetting.cancel()
        readers.close()
        await viewers.close()

    names = {host.lower() for host in settings.hosts}
    application = web.Application(
        middlewares=[protect(lambda host: is_loopback(host) or _name_of(host) in names)],
        client_max_size=_LARGEST_BODY,
    )
    application.cleanup_ctx.append(closing)
    application.router.add_get(PROBE, probe)
    application.router.add_get(f"{VERSION}/{{path:.*}}", answer)
    application.router.add_get("/{path:.*}", send_asset)
    return application


async def _answer(request: web.Request, viewers: Viewers, readers: Readers) -> dict[str, object]:
    """Raises Refusal."""
    path, query = f"/{request.match_info['path']}", dict(request.query)
    async with viewers.entered(request.headers.get("Authorization", "")) as viewer:
        if path == "/runs":
            return await viewer.list_jobs(_namespaces(query.get("namespaces", "")))
        grants = [await viewer.grant(id) for id in dict.fromkeys(_ids(path, query))]
        if not grants:
            raise Refusal(404, "no such path; docs/reference/page-api.md has all")
        return await readers.answer(grants, path, query)


def _ids(path: str, query: dict[str, str]) -> Sequence[str]:
    if path == "/compare":
        return [id for name in ("a", "b") if _ID.fullmatch(id := query.get(name, ""))]
    match = _IDS.match(path)
    return [match[1]] if match else []


def _namespaces(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    if wrong := [name for name in names if not NAMESPACE.fullmatch(name)]:
        raise Refusal(400, f"namespaces must be names with commas between them; got {wrong[0][:63]!r}")
    return names


def _name_of(host: str) -> str:
    """A Host header's name without its port."""
    return re.sub(r":\d{1,5}$", "", host).lower()
