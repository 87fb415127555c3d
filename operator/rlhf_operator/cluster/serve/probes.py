"""HTTP endpoints of one operator process: readiness, liveness and metrics, and how it listens on a port."""

import ssl
from collections.abc import Callable

from aiohttp import web

from ...status.metrics import metrics_route
from ..config.settings import Settings
from ..telemetry import Telemetry
from .metrics_access import PATH, Handler, Review, authorized

_CLOSE_SECONDS = 2.0


async def serve(
    settings: Settings,
    telemetry: Telemetry,
    review: Review,
    *,
    ready: Callable[[], bool],
    alive: Callable[[], bool],
) -> web.AppRunner:
    """Serves on `settings.metrics_port` until the caller cleans the runner up.

    `/readyz` is 200 if `ready()`: the process runs, as leader or on standby, which it says. `/healthz` is 200 if
    `alive()`: its workers and watches make progress; otherwise the kubelet restarts the operator.

    Raises:
        ValueError: the port cannot be had.
    """

    app = web.Application()
    scrape = metrics_route(telemetry.registry)
    app.router.add_get(PATH, authorized(scrape, review) if settings.review_metrics else scrape)
    good = lambda: "ok, leads" if telemetry.leads else "ok, stands by"  # noqa: E731
    app.router.add_get("/readyz", _probe(ready, good, "not ready: still starting, or about to end"))
    app.router.add_get("/healthz", _probe(alive, lambda: "ok", "no progress: a worker or a watch is stuck"))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_CLOSE_SECONDS)
    await listen(runner, settings.metrics_port)
    return runner


def _probe(is_good: Callable[[], bool], good: Callable[[], str], otherwise: str) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        return (
            web.Response(text=f"{good()}\n") if is_good() else web.Response(status=503, text=f"{otherwise}\n")
        )

    return answer


async def listen(runner: web.AppRunner, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Serves the runner's application on the port until the caller cleans the runner up.

    Raises:
        ValueError: the port is taken, or this process may not have it.
    """
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise ValueError(f"cannot listen on port {port}: {error.strerror or error}") from None
