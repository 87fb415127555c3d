"""A proxy in front of an API server that lets things go wrong: refusals in between, streams cut, silence."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from multidict import CIMultiDict
from tests.support.kubernetes.cluster import Cluster
from tests.support.ports import free_port

_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding", "host", "keep-alive"}
_REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
_MISTAKES = (409,)
"""Statuses that are replies to writes alone."""


class Proxy:
    """Plain HTTP on `port` of loopback; the client's own token goes through."""

    def __init__(self, cluster: Cluster, port: int) -> None:
        self.port = port
        self.requests: list[str] = []
        """Methods (WATCH is one here) and paths of everything that was let through."""
        self.refused = 0
        self._cluster = cluster
        self._storm: tuple[int, int] | None = None
        self._counted = 0
        self._streams: set[asyncio.Task[object]] = set()
        self._frozen = False

    def storm(self, status: int, *, of: int) -> None:
        """From now on, all but one of `of` requests are answered with this status (409: of those that write)."""
        self._storm = (status, of)

    def calm(self) -> None:
        self._storm = None

    def freeze_watches(self, on: bool) -> None:
        """While on, watches stay open and tell nothing, as behind a balancer that has lost its connections; what they
        should have told is lost."""
        self._frozen = on

    def cut_watches(self) -> int:
        """Ends every watch in the middle, as a load balancer does; returns how many there were."""
        cut = [task for task in self._streams if not task.done()]
        for task in cut:
            task.get_loop().call_soon_threadsafe(task.cancel)
        return len(cut)

    async def start(self) -> web.AppRunner:
        context = ssl.create_default_context(cadata=self._cluster.ca)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0), timeout=timeout, auto_decompress=False
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port).start()
        return runner

    async def stop(self, runner: web.AppRunner) -> None:
        for task in self._streams:
            task.cancel()
        await runner.cleanup()
        await self._session.close()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        method = "WATCH" if "watch" in request.query else request.method
        self.requests.append(f"{method} {request.path}")
        headers = CIMultiDict((k, v) for k, v in request.headers.items() if k.lower() not in _HOP)
        url = self._cluster.server + request.path_qs
        async with self._session.request(
            request.method, url, headers=headers, data=await request.read() or None
        ) as answer:
            forwarded = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            if "watch" not in request.query:
                return web.Response(status=answer.status, headers=forwarded, body=await answer.read())
            return await self._stream(request, answer, forwarded)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, headers: dict[str, str]
    ) -> web.StreamResponse:
        stream = web.StreamResponse(status=answer.status, headers=headers)
        await stream.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        try:
            async for chunk in answer.content.iter_any():
                if not self._frozen:
                    await stream.write(chunk)
        except asyncio.CancelledError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._streams.discard(task)
        return stream

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self._storm is None:
            return None
        status, of = self._storm
        if status in _MISTAKES and request.method not in ("POST", "PUT", "PATCH"):
            return None
        self._counted += 1
        if self._counted % of == 0:
            return None
        self.refused += 1
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
        headers = {"Retry-After": "1"} if status == 429 else {}
        body |= {"reason": _REASONS[status], "message": "the storm says no"}
        return web.json_response(body, status=status, headers=headers)


@contextmanager
def proxied(cluster: Cluster, folder: Path) -> Iterator[tuple[Proxy, Path]]:
    """The proxy, and a kubeconfig of the same user that goes through it."""
    proxy = Proxy(cluster, free_port())
    kubeconfig = folder / "proxied.kubeconfig"
    context = {"cluster": "proxy", "user": "admin"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{proxy.port}"}}],
        "users": [{"name": "admin", "user": {"token": cluster.token}}],
        "contexts": [{"name": "proxy", "context": context}],
    }
    kubeconfig.write_text(yaml.safe_dump(document))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(proxy.start(), loop).result(60)
    try:
        yield proxy, kubeconfig
    finally:
        asyncio.run_coroutine_threadsafe(proxy.stop(runner), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
