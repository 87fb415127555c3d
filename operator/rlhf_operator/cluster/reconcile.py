"""Reconciles one job: observe, plan, write the status, act. Called repeatedly."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.spec_size import CUT
from rlhf_api.roles import Role

from ..job.names import CONTROLLER, MULTIKUEUE
from ..job.shared_pod import read_pods
from ..job.snapshot import Job, Pod, is_marked
from ..kube.api import Api, Body, Key
from ..kube.api_error import ApiError
from ..kube.calls import run_all, run_growing
from ..supervision.process_state import Finish
from .act.companion_client import CompanionClient
from .act.dispatcher import Dispatcher
from .act.kueue_client import KueueClient
from .act.outcomes import Outcomes
from .act.ownership import owned_by
from .act.pod_client import PodClient
from .act.recorder import Recorder
from .act.status_writer import StatusWriter
from .config.settings import Settings
from .decide.next_step import POLL_SECONDS, Plan
from .decide.plan import plan
from .decide.refusal import is_retried, leave_alone, refuse, reopen_job
from .decide.stopping import is_settled, plan_deleted_job
from .objects.kueue import Quota, deactivated, kept_in_queue, quota
from .objects.pinned import UnreadableConfig
from .observe.desired import Desired, active_config
from .observe.desired_reader import DesiredReader
from .observe.device_claims import DeviceClaims
from .observe.observed import Observed
from .observe.pod_events import DeletionWatch, PodEvents
from .observe.trainer_client import TrainerClient
from .telemetry import Telemetry
from .watching.cache import Cache

RETRY_SECONDS = 1.0
"""Retry interval of a membership push that failed, seconds."""
LARGE_SECONDS = 5.0
"""Time until the next look at a job that is too large, while another such one is refused, seconds."""
JOBS_PER_POLL_SECOND = 20
"""Maximum number of jobs polled per second: with many active jobs each is polled less often, while what is due is not
delayed."""


class Reconciler:
    """Reconciles jobs. Its state only saves API calls."""

    def __init__(
        self, settings: Settings, api: Api, cache: Cache, recorder: Recorder, telemetry: Telemetry
    ) -> None:
        self._settings, self._api, self._cache, self._recorder = settings, api, cache, recorder
        clock, fence = api.clock.time, api.check_fence
        self._trainers = TrainerClient(*settings.token_keys, clock=clock, check_fence=fence)
        self._desired, self._kueue = DesiredReader(settings, api), KueueClient(api, cache)
        self._pods, self._pod_events = PodClient(api, cache, recorder), PodEvents(api)
        self._companions = CompanionClient(settings, api, cache, recorder)
        self._statuses, self._outcomes = StatusWriter(api, cache, recorder, telemetry), Outcomes(cache)
        self._deletions, self._claims = DeletionWatch(), DeviceClaims(api)
        self._large = asyncio.Lock()
        """Held while a job that is too large is refused: the write of its status takes an API server seconds, and many
        at a time leave none for other jobs."""
        self._dispatcher = Dispatcher(api, self._desired, self._kueue, recorder)
        self._uids: dict[Key, str] = {}
        """Uid of the job that the state above belongs to; a job of the same name with another uid starts afresh."""

    async def close(self) -> None:
        await self._trainers.close()

    async def reconcile(self, key: Key) -> float | None:
        """Reconciles a job; returns the seconds until the next reconcile, unless something happens before.

        Raises:
            ApiError: an action failed; the next call continues from there.
        """
        body, deleted_bodies = self._cache.job(key), self._cache.take_departed(key)
        if body is None:
            self._forget(key)  # what it owned, the API server deletes
            self._deletions.forget(key)
            return None
        job = Job.of(body)
        if job.controller != CONTROLLER:
            return await self._dispatcher.reconcile(key, job) if job.controller == MULTIKUEUE else None
        if self._uids.setdefault(key, job.uid) != job.uid:
            self._forget(key)
            self._uids[key] = job.uid
        candidates = (*self._cache.pods(key), *self._cache.take_hidden(key))
        bodies = [pod for pod in candidates if owned_by(pod, job)]
        now = self._api.clock.now()
        job = self._statuses.latest(key, job)
        pods = _read_pods(job, bodies)
        pods = self._deletions.observed(key, pods, now.timestamp())
        if "deletionTimestamp" in body["metadata"]:
            self._forget(key)
            return await self._give_up(key, job, plan_deleted_job(body["metadata"], pods, now))
        if job.unreadable:
            return await self._give_up(key, job, leave_alone(job.unreadable))
        limits = self._settings.limits
        requires_queue = limits is not None and limits.require_queue
        found_workload = await self._kueue.read(key, job, required=requires_queue)
        workload = None if isinstance(found_workload, ApiError) else found_workload
        if is_settled(job, bodies, workload):  # as most jobs of a cluster are; their specs are not read again
            return None
        try:
            want = await self._desired.read(key, job, pods)
        except UnreadableConfig as error:
            return await self._give_up(key, job, leave_alone(str(error)))
        except InvalidJob as error:
            todo = refuse(job, error, pods, now)
            return await (self._give_up_large if CUT in job.body else self._give_up)(key, job, todo)
        retried = want.waits is None and all(pod.over for pod in pods) and is_retried(job, now)
        job = reopen_job(job, want.spec, accepted=retried and await self._pods.accepted(job, want.pinned))
        job = kept_in_queue(job, workload, required=requires_queue)
        deleted = _read_pods(job, [pod for pod in deleted_bodies if owned_by(pod, job)])
        observed = await self._observe(key, job, want, pods, deleted, found_workload)
        job, pods = observed.job, [*observed.pods]
        todo = plan(observed, now)
        if todo.again is None:  # it wants nothing: what is remembered would save no calls
            self._desired.forget(key)
            self._companions.forget(key)
        await run_all(self._pods.replace(job, pod) for pod in bodies if not is_marked(pod, job.name))
        membership_pushed = await self._carry_out(key, job, want, pods, todo, found_workload)
        if todo.again != POLL_SECONDS:
            return todo.again
        again = POLL_SECONDS if membership_pushed else RETRY_SECONDS
        again = max(again, self._cache.active / JOBS_PER_POLL_SECOND)
        return again if todo.due is None else min(again, todo.due)

    async def _observe(
        self,
        key: Key,
        job: Job,
        want: Desired,
        pods: list[Pod],
        deleted: list[Pod],
        workload: Body | ApiError | None,
    ) -> Observed:
        """Reads what else is to know of a job whose desired state is valid: events and devices of its pods, its
        trainer's report, the outcome of what was tried last, and its quota."""
        pods = await self._pod_events.with_event_reasons(key, job, pods)
        pods = await self._claims.with_claimed_devices(key, job, pods)
        trainer = await self._trainers.read(job, pods, bare=want.pinned.sends_bare_token)
        refusal = self._outcomes.refusal(key)
        if refusal is not None and isinstance(refusal.why, Finish):
            # Of the spec of then; a later one reopens the job.
            job = replace(job, generation=refusal.generation)
        known_workload = None if isinstance(workload, ApiError) else workload
        held: Quota = "unknown"
        if not isinstance(workload, ApiError):
            started = active_config(job) == want.pinned.name
            held = quota(job, want.spec, known_workload, want.pinned.name, started=started)
        return Observed(
            job,
            want,
            pods,
            trainer,
            silent_since=self._trainers.silent_since(job),
            trainer_error=self._trainers.trainer_error(job),
            refused=refusal.why if refusal else None,
            deleted_pods=deleted,
            created_attempt=self._outcomes.created_attempt(key),
            quota=held,
            deactivated=deactivated(known_workload),
            prices=self._settings.gpu_prices,
        )

    async def _carry_out(
        self, key: Key, job: Job, want: Desired, pods: list[Pod], todo: Plan, workload: Body | ApiError | None
    ) -> bool:
        """Writes the status with the intended actions first, so that an interrupted reconcile is completed and nothing
        is done twice. `workload`: the one that was planned on.

        Returns whether the trainer has the present membership.
        """
        if todo.stop:
            await self._trainers.stop(job, pods)
        version = job.body["metadata"]["resourceVersion"]
        if todo.status is not None:
            status = await self._with_checkpoint(job, pods, todo.status)
            version = await self._statuses.write(key, job, status)
        for event in todo.events:  # not after the acts: one that is refused ends this look
            await self._recorder.record(job.body, event)
        # First: a member about to be deleted should get no more work.
        membership_pushed = await self._trainers.push_membership(job, pods, todo.members)
        await self._delete_pods(job, todo)
        with self._outcomes.noted(key, job, todo):
            if todo.companions:
                await self._companions.apply(key, job, want.pinned, pods, creating=bool(todo.create))
            # Not for each sandbox that is replaced: a call for nothing, where its job has run.
            if todo.token or any(new.role is not Role.SANDBOX for new in todo.create):
                await self._companions.create_tokens(
                    job, want.spec, self._trainers.key(job), again=todo.token
                )
            if not isinstance(workload, ApiError):
                await self._kueue.line_up(job, want, todo, workload)
            if todo.create and await self._kueue.stands(key, job, workload):
                await self._create_pods(job, want, todo, workload if isinstance(workload, dict) else None)
        if todo.generators is not None:
            await self._api.scale("RLHFJob", job.namespace, job.name, todo.generators, version)
        if todo.expire:
            await self._expire(job)
        return membership_pushed

    async def _create_pods(self, job: Job, want: Desired, todo: Plan, workload: Body | None) -> None:
        admitted = workload if job.queue is not None else None
        known = await self._kueue.flavors(admitted) if admitted else {}
        for first in (True, False):  # of a generator's pods, which are not made where that one is refused
            wave = [pod for pod in todo.create if (pod.rank == 0) == first]
            create = partial(self._pods.create, job, want.pinned, admitted, known)
            await run_all(run_growing(create, [pod for pod in wave if pod.role is role]) for role in Role)

    async def _give_up(self, key: Key, job: Job, todo: Plan) -> float | None:
        """Carries out the actions that are possible without a valid spec."""
        if todo.status is not None:
            await self._statuses.write(key, job, todo.status)
        await self._delete_pods(job, todo)
        if todo.queue == "leave":
            await self._kueue.leave(job, self._kueue.workload(key, job), todo.status or job.status)
        for event in todo.events:
            await self._recorder.record(job.body, event)
        if todo.expire:
            await self._expire(job)
        return todo.again

    async def _give_up_large(self, key: Key, job: Job, todo: Plan) -> float | None:
        """As `_give_up`, for one job at a time; a worker does not wait for its turn, which others need."""
        if self._large.locked():
            return LARGE_SECONDS
        async with self._large:
            return await self._give_up(key, job, todo)

    async def _expire(self, job: Job) -> None:
        await self._api.delete("RLHFJob", job.namespace, job.name, uid=job.uid)

    async def _delete_pods(self, job: Job, todo: Plan) -> None:
        await run_all(
            self._api.end_pod(job.namespace, pod.name, pod.uid)
            if pod.stays
            else self._api.delete("Pod", job.namespace, pod.name, uid=pod.uid, grace=pod.grace)
            for pod in todo.delete
            if not (pod.forced and self._settings.keep_lost_pods)
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

    def _forget(self, key: Key) -> None:
        if (uid := self._uids.pop(key, None)) is not None:
            self._trainers.forget(uid)
        for each in (
            self._desired,
            self._companions,
            self._statuses,
            self._outcomes,
            self._pod_events,
            self._claims,
        ):
            each.forget(key)


def _read_pods(job: Job, bodies: Iterable[Body]) -> list[Pod]:
    """The job's pods; of one that processes share, a pod for each."""
    cluster = job.status.cluster if job.status else None
    counted = cluster.counted if cluster else ()
    return [pod for body in bodies if is_marked(body, job.name) for pod in read_pods(body, counted)]
