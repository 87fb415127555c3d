"""Reconciles one job: observe, plan, write the status, act. Called repeatedly."""

import asyncio
import datetime
import json
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from rlhf_api.problems import InvalidJob
from rlhf_api.roles import Role
from rlhf_api.status import JobStatus

from ..job_status import worth_writing
from ..restart_policy import Finish
from .api import Api, ApiError, Key
from .cache import COMPANIONS, Cache
from .desired import Desired
from .desired_reader import DesiredReader
from .kueue import deactivated, quota
from .kueue_client import KueueClient
from .names import pod_name
from .objects import companions, owned, token_secret
from .observed import Observed
from .pinned import Pinned, UnreadableConfig
from .plan import POLL_SECONDS, Plan, plan
from .pod_client import PodClient, owned_by
from .recorder import Recorder
from .refusal import Refusal, by_server, leave_alone, refuse, reopened
from .settings import Settings
from .snapshot import Job, Pod, is_marked
from .telemetry import Telemetry
from .trainer_client import TrainerClient

T = TypeVar("T")

RETRY_SECONDS = 1.0
"""Retry interval of a membership push that failed, seconds."""
JOBS_PER_POLL_SECOND = 20
"""With many jobs that run or start each is asked for its progress less often; what is due is not put off by that."""


class Reconciler:
    """Reconciles jobs. Its state only saves API calls."""

    def __init__(
        self, settings: Settings, api: Api, cache: Cache, recorder: Recorder, telemetry: Telemetry
    ) -> None:
        self._settings, self._api, self._cache = settings, api, cache
        self._recorder, self._telemetry = recorder, telemetry
        self._trainers = TrainerClient(*settings.token_keys)
        self._desired, self._kueue = DesiredReader(settings, api), KueueClient(api, cache, recorder)
        self._pods = PodClient(api, cache, recorder)
        self._applied: dict[Key, tuple[int, list[tuple[str, Key, str]]]] = {}
        """A digest of the configuration, and what was made for it."""
        self._refused: dict[Key, Refusal] = {}
        self._written: dict[Key, float] = {}
        self._uids: dict[Key, str] = {}
        """Uid of the job that the state above belongs to; a job of the same name with another uid starts afresh."""

    async def close(self) -> None:
        await self._trainers.close()

    async def reconcile(self, key: Key) -> float | None:
        """Reconciles a job; returns the seconds until the next reconcile, unless something happens before.

        Raises:
            ApiError: an action failed; the next call continues from there.
        """
        body = self._cache.job(key)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)  # what it owns, the API server deletes
            return None
        job = Job.of(body)
        if self._uids.setdefault(key, job.uid) != job.uid:
            self._forget(key)
            self._uids[key] = job.uid
        bodies = [pod for pod in self._cache.pods(key) if owned_by(pod, job)]
        pods = [Pod.of(pod) for pod in bodies if is_marked(pod, job.name)]
        now = datetime.datetime.now(datetime.UTC)
        if job.unreadable:
            return await self._give_up(key, job, leave_alone(job.unreadable))
        try:
            want = await self._desired.read(key, job, pods)
        except UnreadableConfig as error:
            return await self._give_up(key, job, leave_alone(str(error)))
        except InvalidJob as error:
            return await self._give_up(key, job, refuse(job, error, pods, now))
        job = reopened(job, want.spec)
        trainer = await self._trainers.read(job, pods)
        workload, refusal = self._cache.workload(key), self._refused.get(key)
        if refusal is not None and isinstance(refusal.why, Finish):
            # Of the spec of then; a later one reopens the job.
            job = replace(job, generation=refusal.generation)
        seen = Observed(
            job,
            want,
            pods,
            trainer,
            self._trainers.silent_since(job),
            refusal.why if refusal else None,
            refusal.unmade if refusal else None,
            quota(job, want.spec, workload, want.pinned.name),
            deactivated(workload),
            self._settings.gpu_prices,
        )
        todo = plan(seen, now)
        if todo.again is None:  # it wants nothing: what is remembered would save no calls
            self._desired.forget(key)
            self._applied.pop(key, None)
        await _all(self._pods.replace(job, pod) for pod in bodies if not is_marked(pod, job.name))
        told = await self._carry_out(key, job, want, pods, todo)
        if todo.again != POLL_SECONDS:
            return todo.again
        again = POLL_SECONDS if told else RETRY_SECONDS
        again = max(again, self._cache.active / JOBS_PER_POLL_SECOND)
        return again if todo.due is None else min(again, todo.due)

    async def _carry_out(self, key: Key, job: Job, want: Desired, pods: list[Pod], todo: Plan) -> bool:
        """Writes the status with the intended actions first, so that an interrupted reconcile is completed and nothing
        is done twice.

        Returns whether the trainer has the present membership.
        """
        if todo.stop:
            await self._trainers.stop(job, pods)
        version = job.body["metadata"]["resourceVersion"]
        if todo.status is not None:
            version = await self._write(key, job, await self._with_checkpoint(job, pods, todo.status))
        # First: a member about to be deleted should get no more work.
        told = await self._trainers.tell(job, pods, todo.members)
        await self._delete_pods(job, todo)
        with self._refusing(key, job, todo):
            if todo.companions:
                await self._apply_companions(key, job, want.pinned)
            if todo.create:
                await self._create_token(job)
            await self._kueue.line_up(key, job, want, todo)
            admitted = self._cache.workload(key) if todo.create and job.queue else None
            known = await self._kueue.flavors(job, admitted) if admitted else {}
            for first in (True, False):  # of a generator's pods, which are not made where that one is refused
                wave = [pod for pod in todo.create if (pod.rank == 0) == first]
                await _all(self._pods.create(job, want.pinned, pod, admitted, known) for pod in wave)
        if todo.generators is not None:
            await self._api.scale("RLHFJob", job.namespace, job.name, todo.generators, version)
        for event in todo.events:
            await self._recorder.record(job.body, event)
        if todo.expire:
            await self._api.delete("RLHFJob", job.namespace, job.name, uid=job.uid)
        return told

    async def _give_up(self, key: Key, job: Job, todo: Plan) -> float | None:
        """Only the actions that are possible without a valid spec."""
        if todo.status is not None:
            await self._write(key, job, todo.status)
        await self._delete_pods(job, todo)
        if todo.queue == "leave":
            await self._kueue.leave(key, job)
        for event in todo.events:
            await self._recorder.record(job.body, event)
        return todo.again

    async def _delete_pods(self, job: Job, todo: Plan) -> None:
        await _all(
            self._api.delete("Pod", job.namespace, pod.name, uid=pod.uid, grace=pod.grace)
            for pod in todo.delete
        )

    async def _with_checkpoint(self, job: Job, pods: list[Pod], status: JobStatus) -> JobStatus:
        """Forwards a checkpoint request once; the status records that it was accepted."""
        cluster = status.cluster
        if cluster is None or job.checkpoint is None or job.checkpoint == cluster.checkpoint_requested:
            return status
        if not await self._trainers.checkpoint(job, pods):
            return status
        taken = cluster.model_copy(update={"checkpoint_requested": job.checkpoint})
        return status.model_copy(update={"cluster": taken})

    async def _write(self, key: Key, job: Job, status: JobStatus) -> str:
        """Applies the status where that is worth it; the job's resourceVersion then."""
        version: str = job.body["metadata"]["resourceVersion"]
        content = json.loads(status.model_dump_json(by_alias=True, exclude_none=True))
        self._telemetry.job(key, content)
        age = time.monotonic() - self._written.get(key, float("-inf"))
        if not worth_writing(job.body.get("status") or {}, content, age):
            return version
        body = {
            "apiVersion": job.body["apiVersion"],
            "kind": job.body["kind"],
            "metadata": {
                "name": job.name,
                "namespace": job.namespace,
                "uid": job.uid,
                # Refused where somebody wrote after we looked: this process may lead no longer.
                "resourceVersion": version,
            },
            "status": content,
        }
        self._cache.put(stored := await self._api.apply_status(body))
        self._written[key] = time.monotonic()
        return str(stored["metadata"]["resourceVersion"])

    async def _apply_companions(self, key: Key, job: Job, pinned: Pinned) -> None:
        """Applies service, ConfigMap and so on, if they differ from the last ones or one is missing."""
        known, content = self._applied.get(key), hash((pinned.name, *sorted(pinned.texts.items())))
        if known is not None and known[0] == content and all(self._cache.has(*each) for each in known[1]):
            return
        bodies = companions(pinned, self._settings.own_namespace, self._settings.metrics_from)
        made = await _all(self._api.apply(owned(body, job)) for body in bodies)
        listed = [body for body in made if body["kind"] in COMPANIONS]
        for body in listed:
            self._cache.put(body)
        self._applied[key] = content, [(body["kind"], key, body["metadata"]["name"]) for body in listed]

    async def _create_token(self, job: Job) -> None:
        try:
            await self._api.create(owned(token_secret(self._settings.token_key, job), job))
        except ApiError as error:
            if error.status != 409:  # exists already, and never changes
                raise

    @contextmanager
    def _refusing(self, key: Key, job: Job, todo: Plan) -> Iterator[None]:
        """Keeps a refusal of the job's objects by the API server for the next look, and for no other."""
        self._refused.pop(key, None)
        try:
            yield
        except ApiError as error:
            there = {pod["metadata"]["name"] for pod in self._cache.pods(key) if owned_by(pod, job)}
            gang = [new for new in todo.create if new.role is Role.TRAINER]
            some = any(pod_name(job.name, new.role, new.index) in there for new in gang)
            unmade = gang[0].attempt if gang and not some else None
            why = by_server(error.status, error.kind, f"{error.reason}: {error.message}")
            self._refused[key] = Refusal(job.generation, why, unmade)
            raise

    def _forget(self, key: Key) -> None:
        if (uid := self._uids.pop(key, None)) is not None:
            self._trainers.forget(uid)
        self._telemetry.job(key, None)
        self._desired.forget(key)
        for kept in (self._applied, self._refused, self._written):
            kept.pop(key, None)


async def _all(calls: "Iterable[Coroutine[Any, Any, T]]") -> list[T]:
    """Runs all calls concurrently, each to its end; then raises the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
