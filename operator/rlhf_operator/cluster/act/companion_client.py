"""Creates the objects that a job has beside its pods: Secret, Service, ConfigMap, NetworkPolicy and gang."""

from collections.abc import Collection, Sequence

from rlhf_api.spec import Spec

from ...job.snapshot import Job, Pod
from ...kube.api import Api, Body, Key
from ...kube.api_error import ApiError
from ...kube.calls import run_all
from ...kube.kinds import kind_of
from ..config.settings import Settings
from ..decide.describe import Event
from ..objects.companions import companions, owned, token_secrets
from ..objects.gangs import members
from ..objects.pinned import Pinned
from ..objects.seal import sealed
from ..watching.cache import Cache
from .ownership import check_name
from .recorder import Recorder

_PLAINLY_NAMED = ("PodGroup", "Service")
"""Kinds whose names somebody else may have chosen too, or an earlier job of this name; others' are of the job's uid."""
_Versions = dict[tuple[str, str], int]
"""Versions of objects, by kind and name."""


class CompanionClient:
    """Applies companions; its state only saves API calls."""

    def __init__(self, settings: Settings, api: Api, cache: Cache, recorder: Recorder) -> None:
        self._settings, self._api, self._cache, self._recorder = settings, api, cache, recorder
        self._applied: dict[Key, tuple[int, _Versions]] = {}
        """Digest of each job's configuration, and the versions of the objects that were applied for it."""

    async def apply(self, key: Key, job: Job, pinned: Pinned, pods: Sequence[Pod], *, creating: bool) -> None:
        """Applies service, ConfigMap and so on, if they differ from those applied last, or if somebody has deleted or
        changed one. A gang's object is also applied whenever pods are about to be created: without it no scheduler
        places them, and the next listing may be two minutes away."""
        spec, stored = pinned.config.spec, (pinned.stored or {}).items()
        gang = members(pinned.config, pods) if spec.scheduling.gang != "none" else {}
        # All that the objects depend on; the name is the configuration's digest, but for the number of generators.
        content = hash((pinned.name, spec.generator.replicas, *gang.items(), *sorted(stored)))
        last, ours = self._applied.get(key, (None, _Versions()))
        cached_versions = {each: self._cache.version(each[0], key, each[1]) for each in ours}
        if last == content and cached_versions == ours and not (gang and creating):
            return
        settings, secret = self._settings, self._settings.token_key
        bodies = companions(pinned, job.uid, settings.own_namespace, settings.metrics_from, gang)
        bodies = [sealed(body, secret, job) if body["kind"] == "ConfigMap" else body for body in bodies]
        there = {each for each, version in cached_versions.items() if version is not None}
        made = await run_all(self._apply_one(job, body, there) for body in bodies)
        for body in made:
            self._cache.put(body)
        now = {(kind_of(each), each["metadata"]["name"]): _version(each) for each in made}
        self._applied[key] = content, now
        for kind, name in now.keys() & ours.keys() if last == content else ():
            # Of what others change in it beside ours (an annotation, say) nothing is put back.
            if cached_versions[kind, name] not in (None, ours[kind, name], now[kind, name]):
                message = f"{kind} {name} was changed by someone else; the operator has restored it"
                await self._recorder.record(job.body, Event("Warning", "Restored", message))

    async def _apply_one(self, job: Job, body: Body, there: Collection[tuple[str, str]]) -> Body:
        """`there`: kinds and names of what was applied for this job before, and is still there."""
        if body["kind"] in _PLAINLY_NAMED and (kind_of(body), body["metadata"]["name"]) not in there:
            await check_name(self._api, job, body)
        return await self._api.apply(owned(body, job))

    async def create_tokens(self, job: Job, spec: Spec, key: bytes, *, again: bool) -> None:
        """Creates the Secrets of the tokens, of this key, unless they exist; `again`: a pod did not find one, which an
        event reports."""
        await run_all(self._create_token(job, body, again=again) for body in token_secrets(key, job, spec))

    async def _create_token(self, job: Job, body: Body, *, again: bool) -> None:
        try:
            made = await self._api.create(owned(body, job))
        except ApiError as error:
            if error.status != 409:  # exists already, and never changes
                raise
            return
        if again:
            message = f"Secret {made['metadata']['name']} was missing, which pods need; it is created again"
            await self._recorder.record(job.body, Event("Warning", "TokenRestored", message))

    def forget(self, key: Key) -> None:
        self._applied.pop(key, None)


def _version(body: Body) -> int:
    return int(body["metadata"]["resourceVersion"])
