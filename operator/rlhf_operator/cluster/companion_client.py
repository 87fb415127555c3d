"""Creates the objects that a job has beside its pods: Secret, Service, ConfigMap, NetworkPolicy and gang."""

from .api import Api, ApiError, Key, run_all
from .cache import COMPANIONS, Cache
from .describe import Event
from .objects import companions, owned, token_secret
from .pinned import Pinned
from .recorder import Recorder
from .settings import Settings
from .snapshot import Job


class CompanionClient:
    """Applies companions; its state only saves API calls."""

    def __init__(self, settings: Settings, api: Api, cache: Cache, recorder: Recorder) -> None:
        self._settings, self._api, self._cache, self._recorder = settings, api, cache, recorder
        self._applied: dict[Key, tuple[int, list[tuple[str, Key, str]]]] = {}
        """A digest of the configuration, and what was made for it."""

    async def apply(self, key: Key, job: Job, pinned: Pinned) -> None:
        """Applies service, ConfigMap and so on, if they differ from the last ones or one is missing."""
        known, content = self._applied.get(key), hash((pinned.name, *sorted(pinned.texts.items())))
        if known is not None and known[0] == content and all(self._cache.has(*each) for each in known[1]):
            return
        bodies = companions(pinned, self._settings.own_namespace, self._settings.metrics_from)
        made = await run_all(self._api.apply(owned(body, job)) for body in bodies)
        listed = [body for body in made if body["kind"] in COMPANIONS]
        for body in listed:
            self._cache.put(body)
        self._applied[key] = content, [(body["kind"], key, body["metadata"]["name"]) for body in listed]

    async def create_token(self, job: Job, *, again: bool) -> None:
        """Creates the token's Secret unless it exists; `again`: a pod did not find it, and that is told."""
        try:
            made = await self._api.create(owned(token_secret(self._settings.token_key, job), job))
        except ApiError as error:
            if error.status != 409:  # exists already, and never changes
                raise
            return
        if again:
            message = f"Secret {made['metadata']['name']} was missing, without which no pod starts; it is made again"
            await self._recorder.record(job.body, Event("Warning", "TokenRestored", message))

    def forget(self, key: Key) -> None:
        self._applied.pop(key, None)
