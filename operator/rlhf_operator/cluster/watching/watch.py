"""Watch streams of jobs, their pods and Workloads, by kopf, which no other module imports.

It is embedded (https://docs.kopf.dev/en/latest/embedding/), on an event loop in a thread of its own: in the main thread
it would take over the signals, and at its end it cancels every task of its loop. Its event handlers write nothing to
objects. It needs `list` and `watch` on these kinds, and discovery, which every account has: scanning for namespaces and
resource definitions is disabled.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, cast

import aiohttp
import kopf

from rlhf_api.host.event_loop import EventLoop

from ...job.names import MANAGED_BY, OPERATOR
from ...kube.api import Api, Body
from ...kube.kinds import FIELD_MANAGER, KINDS
from .watch_session import WatchSession

logger = logging.getLogger(__name__)

OURS = f"{MANAGED_BY}={OPERATOR}"
SELECTORS = {"RLHFJob": "", "Pod": OURS, "Workload": OURS}
"""Watched kinds, with a label selector each."""
_STOP_SECONDS = 5.0
_POLL_SECONDS = 5.0

See = Callable[[Body, bool], object]
"""Called with every object that was seen, and true if it was deleted."""


async def kinds_served(api: Api) -> list[str]:
    """The kinds to watch. Waits until the server serves RLHFJob; Kueue's Workload may be missing."""
    warned = False
    while not await api.serves("RLHFJob"):
        if not warned:
            logger.warning(
                "the API server does not know RLHFJob; waiting for crds/rlhfjobs.rlhf.dev.yaml to be applied"
            )
            warned = True
        await asyncio.sleep(_POLL_SECONDS)
    return [kind for kind in SELECTORS if kind != "Workload" or await api.serves(kind)]


async def watch(api: Api, namespaces: Collection[str], kinds: Collection[str], see: See) -> None:
    """Calls `see` with every existing object and then with every change, until it is cancelled. `namespaces`: empty for
    the whole cluster.

    Raises:
        RuntimeError: kopf has ended.
        Exception: what has ended kopf.
    """
    here, registry, settings = asyncio.get_running_loop(), kopf.OperatorRegistry(), _settings()
    crossing = _ThreadHandoff(here, see)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        credentials = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_credentials(api), here))
        return _session(credentials)

    async def on_event(event: kopf.RawEvent, **_: Any) -> None:
        crossing.put(dict(event["object"]), event["type"] == "DELETED")

    for kind in kinds:
        version, plural = KINDS[kind]
        group, _, version = version.rpartition("/")
        kopf.on.event(group, version, plural, registry=registry)(on_event)
        if SELECTORS[kind]:
            settings.watching.label_selectors[group, version, plural] = SELECTORS[kind]
    where: dict[str, Any] = {"namespaces": [*namespaces]} if namespaces else {"clusterwide": True}
    stop = threading.Event()
    async with EventLoop("kopf") as loop:
        operator = kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            stop_flag=stop,
            memo=(),  # copied for every object: this takes no memory, as kopf's own does
            **where,
        )
        running = asyncio.create_task(loop.run_async(operator))
        try:
            await asyncio.shield(running)
        finally:
            stop.set()
            await asyncio.wait({running}, timeout=_STOP_SECONDS)
    raise RuntimeError("kopf has ended; see its log")


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs([])
    settings.process.ultimate_exiting_timeout = None  # this process ends itself
    settings.networking.request_timeout = 120  # of a page of jobs, each as large as the server stores
    settings.networking.connect_timeout = 5
    # After five minutes of refusals by the API server the process exits and its pod is restarted; without any reply
    # it waits without limit.
    settings.networking.error_backoffs = [0.5, 1, 2, *[5] * 60]
    settings.watching.connect_timeout = 5
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.reconnect_backoff = 0.5
    settings.watching.chunk_size = 25  # see Api.list
    settings.queueing.idle_timeout = 0.1
    settings.queueing.exit_timeout = 0.5
    return settings


async def _credentials(api: Api) -> kopf.ConnectionInfo:
    """Credentials of our own client. kopf asks again after a refusal, such as after a token's renewal."""
    configuration = api.configuration
    header = await configuration.get_api_key_with_prefix("BearerToken")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        token=header.split()[-1] if header else None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        proxy_url=configuration.proxy,
    )


def _session(info: kopf.ConnectionInfo) -> kopf.AiohttpSession:
    session = WatchSession(
        {**info.as_http_headers(), "User-Agent": FIELD_MANAGER},
        lambda: aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=cast(aiohttp.ClientSession, session))


class _ThreadHandoff:
    """Passes objects from kopf's thread to the loop of `see`, all waiting ones at once: waking the loop for each would
    take as long as processing it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, see: See) -> None:
        self._loop, self._see = loop, see
        self._waiting = deque[tuple[Body, bool]]()

    def put(self, body: Body, deleted: bool) -> None:
        """Stores an object, in kopf's thread alone: if others are waiting there, an earlier call has woken the loop
        already."""
        self._waiting.append((body, deleted))
        if len(self._waiting) == 1:
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        try:
            for _ in range(len(self._waiting)):
                self._see(*self._waiting.popleft())
        finally:
            if self._waiting:
                self._loop.call_soon(self._take)


class _NoDiffs(kopf.MultiDiffBaseStorage):
    """Disables kopf's diffs: its own storage copies each object for change handlers, of which there are none, which is
    a third of the processor time that the start of a job takes the operator."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()
