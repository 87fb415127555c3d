"""Watch streams of jobs, their pods and Workloads, by kopf, which is used only for this.

Its event handlers write nothing to objects. It needs `list` and `watch` on these kinds, and discovery, which every
account has: scanning for namespaces and resource definitions is disabled.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Self

import kopf

from .api import KINDS, Api, Body
from .discovered import Discovered
from .names import MANAGED_BY, OPERATOR

logger = logging.getLogger(__name__)

OURS = f"{MANAGED_BY}={OPERATOR}"
SELECTORS = {"RLHFJob": "", "Pod": OURS, "Workload": OURS}
"""Watched kinds, with a label selector each."""
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 5.0

See = Callable[[Body, bool], object]
"""Called with every object that was seen, and true where it was deleted."""


async def kinds_served(api: Api) -> list[str]:
    """The kinds to watch. Waits until the server serves RLHFJob; Kueue's Workload may be missing."""
    told = False
    while not await api.serves("RLHFJob"):
        if not told:
            logger.warning("waits for crds/rlhfjobs.rlhf.dev.yaml: the API server does not know RLHFJob")
            told = True
        await asyncio.sleep(_POLL_SECONDS)
    return [kind for kind in SELECTORS if kind != "Workload" or await api.serves(kind)]


class Watch:
    """A running kopf: calls `see` with every existing object and then with every change, until `stop`."""

    def __init__(
        self, kinds: Collection[str], tasks: Collection[asyncio.Task[Any]], discovered: Discovered
    ) -> None:
        self._kinds, self._tasks, self._discovered = kinds, tasks, discovered

    @classmethod
    async def start(cls, api: Api, namespaces: Collection[str], kinds: Collection[str], see: See) -> Self:
        """Watches these namespaces, or the whole cluster if empty.

        kopf takes over SIGTERM and SIGINT here: install your handlers again afterwards.
        """
        registry, settings, discovered = kopf.OperatorRegistry(), _settings(), Discovered()

        async def login(**_: Any) -> kopf.ConnectionInfo:
            return await _credentials(api)

        async def seen(event: kopf.RawEvent, **_: Any) -> None:
            see(dict(event["object"]), event["type"] == "DELETED")

        kopf.on.login(registry=registry)(login)
        for kind in kinds:
            version, plural = KINDS[kind]
            group, _, version = version.rpartition("/")
            kopf.on.event(group, version, plural, registry=registry)(seen)
            if SELECTORS[kind]:
                settings.watching.label_selectors[group, version, plural] = SELECTORS[kind]
        where: dict[str, Any] = {"namespaces": [*namespaces]} if namespaces else {"clusterwide": True}
        tasks = await kopf.spawn_tasks(
            registry=registry, settings=settings, insights=discovered.insights, standalone=True, **where
        )
        return cls(kinds, tasks, discovered)

    async def failed(self) -> None:
        """Waits until kopf gives up; always raises."""
        found = asyncio.create_task(self._discovered.plurals())
        try:
            done, _ = await asyncio.wait(
                {found, *self._tasks}, timeout=_START_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if done == {found} and found.result() == {KINDS[kind][1] for kind in self._kinds}:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            found.cancel()
        for task in done - {found}:
            task.result()
        raise RuntimeError(f"kopf has stopped, or can't watch {', '.join(self._kinds)}; see its log")

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=_STOP_SECONDS)


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = _NoDiffs()
    settings.persistence.progress_storage = _NoProgress()
    settings.process.ultimate_exiting_timeout = None  # this process ends itself
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    # After five minutes of refusals by the API server the process exits and its pod is restarted; without any reply
    # it waits without limit.
    settings.networking.error_backoffs = [0.5, 1, 2, *[5] * 60]
    settings.watching.connect_timeout = 5
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.reconnect_backoff = 0.5
    settings.watching.chunk_size = 100
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


class _NoDiffs(kopf.DiffBaseStorage):
    """Disables kopf's diffs: it would copy every object three times for change handlers, of which there are none."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass


class _NoProgress(kopf.ProgressStorage):
    """Stores nothing: kopf has no handlers whose progress it would write to objects."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence
