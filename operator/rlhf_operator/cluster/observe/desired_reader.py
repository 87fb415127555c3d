"""Reads each job's desired configuration, with the objects it needs from the API server: the referenced runtime, and
the ConfigMap of the job's pods."""

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from rlhf_api.contract.status import ENDED
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import from_cluster
from rlhf_api.manifest.runtime import NamedRuntime, parse_runtime
from rlhf_api.manifest.spec_size import size

from ...job.snapshot import Job, Pod
from ...kube.api import Api, Body, Key
from ...kube.api_error import ApiError
from ...status.condition import refused
from ..config.limits import Limits
from ..config.settings import Settings
from ..objects.pinned import DEFAULTS, Pinned, UnreadableConfig, defaults_of_0_1, shows_defaults
from ..objects.seal import check_unsealed, is_sealed
from .desired import Desired, Wait, active_config, asks_to_suspend, desired_state

_REMEMBERED, _REMEMBERED_BYTES = 4096, 4 << 20
"""Maximum number of cached configurations, and bytes of their specs as JSON, which take up to thirty times that as
objects; a configuration takes more memory than all else that is cached of its job."""
_QUICK_BYTES = 16 << 10
"""Maximum size of a spec that is checked in the event loop: the largest takes a second."""
_ASIDE = ThreadPoolExecutor(1, thread_name_prefix="checks")

_Basis = tuple[str, int, str | None, str | None, str | None]
"""Uid, generation, queue, priority and active configuration of the job that a configuration was read for."""
_Remembered = tuple[_Basis, Desired, int]
"""A configuration with what it was computed from, and the size of its spec."""


class DesiredReader:
    """Reads a configuration once for each change of the spec, as long as it is among those that were used last:
    checking one takes longer than all else that is decided."""

    def __init__(self, settings: Settings, api: Api) -> None:
        self._settings, self._api = settings, api
        self._remembered: OrderedDict[Key, _Remembered] = OrderedDict()
        self._bytes = 0
        """Sum of the sizes in `_remembered`."""

    async def read(self, key: Key, job: Job, pods: list[Pod]) -> Desired:
        """The configuration that `job` is to run; `pods`: its present pods.

        Raises:
            InvalidJob: the spec is invalid, and nothing runs yet.
            UnreadableConfig: the running configuration cannot be read, or is not ours and may not be run.
            ApiError: the API server did not reply.
        """
        basis = (job.uid, job.generation, job.queue, job.priority, active_config(job))
        remembered = self._remembered.get(key)
        if remembered is not None and remembered[0] != basis and _started_with(remembered, basis):
            remembered = self._remembered[key] = basis, *remembered[1:]
        if remembered is None or remembered[0] != basis:
            runtime = await self._runtime(job)
            running = await self._running(job, pods, runtime)
            want = await self._read_desired(job, running, runtime, self._settings.limits)
            if runtime is not None and running is None:
                return want  # the runtime as of the job's start
            remembered = basis, want, size(job.body.get("spec"))
            self._remember(key, remembered)
        self._remembered.move_to_end(key)
        return remembered[1]

    def forget(self, key: Key) -> None:
        if (remembered := self._remembered.pop(key, None)) is not None:
            self._bytes -= remembered[2]

    def _remember(self, key: Key, remembered: _Remembered) -> None:
        self.forget(key)
        self._remembered[key] = remembered
        self._bytes += remembered[2]
        while len(self._remembered) > _REMEMBERED or self._bytes > _REMEMBERED_BYTES:
            self.forget(next(iter(self._remembered)))

    async def _read_desired(
        self, job: Job, running: Pinned | None, runtime: NamedRuntime | Wait | None, limits: Limits | None
    ) -> Desired:
        """Raises InvalidJob, as `desired_state` does; a large spec is checked in a thread."""
        check = partial(desired_state, job, running, self._settings.defaults, limits, runtime)
        if size(job.body.get("spec")) <= _QUICK_BYTES:
            return check()
        return await asyncio.get_running_loop().run_in_executor(_ASIDE, check)

    async def _runtime(self, job: Job) -> NamedRuntime | Wait | None:
        """The runtime that the job references, or why it cannot be used; None if there is none or the job has ended."""
        status = job.status
        if status is not None and status.phase in ENDED and not refused(status):
            return None
        spec = job.body.get("spec")
        if not isinstance(spec, dict) or not spec.get("runtime"):
            return None
        try:
            named = from_cluster(job.body).spec.runtime
        except InvalidJob:
            return None
        if named is None:
            return None
        where = job.namespace if named.kind == "RLHFRuntime" else None
        what = f"{named.kind} {named.name}"
        try:
            return parse_runtime(await self._api.get(named.kind, where, named.name))
        except InvalidJob as error:
            return Wait("RuntimeInvalid", f"{what}: {'; '.join(map(str, error.problems))}")
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            reason = "RuntimeNotFound" if error.status == 404 else "RuntimeForbidden"
            return Wait(reason, f"waiting for {what}: {error.message}")

    async def _running(self, job: Job, pods: list[Pod], runtime: NamedRuntime | Wait | None) -> Pinned | None:
        """The configuration that the job's pods run: the spec with today's defaults if it is the same, else from its
        ConfigMap; None if there is none, and no pod goes on with it.
        """
        name, defaults = active_config(job), self._settings.defaults
        if name is None:
            return None
        now = None
        with suppress(InvalidJob):
            now = (await self._read_desired(job, None, runtime, None)).pinned
            if now.name == name:
                return now
        if (stored := await self._get("ConfigMap", job, name)) is None:
            if now is not None and _has_running_pods(pods) and not asks_to_suspend(job):
                raise UnreadableConfig(
                    f"ConfigMap {name} of its pods is gone: restore it, or suspend the job"
                )
            return None
        pinned = await self._with_defaults(stored, job, pods)
        if not is_sealed(stored, self._settings.token_keys, job):
            check_unsealed(pinned, self._settings.limits, defaults.image)
        return pinned

    async def _with_defaults(self, config_map: Body, job: Job, pods: list[Pod]) -> Pinned:
        """A ConfigMap's configuration; the operator's defaults of then are in it, or in one of the job's pods."""
        pinned = Pinned.read(config_map, self._settings.defaults)
        if DEFAULTS in config_map["data"]:
            return pinned
        like = next((pod for pod in pods if shows_defaults(pinned.config.spec, pod.role)), None)
        body = await self._get("Pod", job, like.name) if like else None
        return Pinned.read(config_map, defaults_of_0_1(body)) if body else pinned

    async def _get(self, kind: str, job: Job, name: str) -> Body | None:
        try:
            return await self._api.get(kind, job.namespace, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return None


def _started_with(remembered: _Remembered, basis: _Basis) -> bool:
    """True if the job has begun with the configuration that was computed for it before it had one."""
    (*same, active), want, _ = remembered
    return active is None and want.waits is None and basis == (*same, want.pinned.name)


def _has_running_pods(pods: list[Pod]) -> bool:
    """True if any of the pods runs and is not being deleted."""
    return any(pod.ended is None and pod.deletion_deadline is None for pod in pods)
