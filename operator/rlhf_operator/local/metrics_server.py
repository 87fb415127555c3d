"""`/metrics` of a local run for Prometheus: the same series as the operator's of a job on a cluster."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry

from rlhf_api.contract.run import Process
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob, Problem

from ..status.metrics import JobMetrics, metrics_route
from .resources.ports import HOST, is_free

NAMESPACE = "local"
"""Value of the namespace label, where a cluster has the namespace."""
OPTION = "--metrics-port"


def check_port(port: int | None, places: Sequence[Process]) -> None:
    """Raises InvalidJob if the requested port is not available; None: any."""
    if port is None:
        return
    if not 1 <= port <= 65535:
        raise InvalidJob([Problem(OPTION, f"must be 1 to 65535; got {port}")])
    taken = {*(p.port for p in places), *(int(p.master.rpartition(":")[2]) for p in places)}
    if port in taken or not is_free(port):
        raise InvalidJob([Problem(OPTION, f"port {port} is taken; choose another or leave it out")])


class MetricsServer:
    """Serves one job's newest status as metrics, on the loopback interface only."""

    def __init__(self, job: str, port: int | None) -> None:
        """`port` None: any free port."""
        self._key, self._port, self._jobs = (NAMESPACE, job), port or 0, JobMetrics()

    def put(self, status: JobStatus) -> None:
        self._jobs.put(self._key, status.model_dump(mode="json", by_alias=True))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serves inside the context, whose value is the URL. Raises InvalidJob if the port has been taken meanwhile."""
        registry = CollectorRegistry()
        registry.register(self._jobs)
        app = web.Application()
        app.router.add_get("/metrics", metrics_route(registry))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, HOST, self._port).start()
            except OSError as error:
                raise InvalidJob([Problem(OPTION, f"{HOST}:{self._port}: {error.strerror}")]) from error
            yield f"http://{HOST}:{runner.addresses[0][1]}/metrics"
        finally:
            await runner.cleanup()
