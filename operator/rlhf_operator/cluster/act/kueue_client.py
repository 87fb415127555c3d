"""Writes a job's Workload as planned, and reads the cluster-scoped objects that it refers to."""

from collections.abc import Mapping
from typing import Any

from rlhf_api.contract.status import ENDED, JobStatus

from ...console.text import time_text
from ...job.snapshot import Job
from ...kube.api import Api, Body, Key
from ...kube.api_error import ApiError
from ...status.condition import is_true
from ..decide.next_step import Plan
from ..objects.companions import owned
from ..objects.kueue import deactivated, finished, is_dispatched, is_over, released, report, stands, workload
from ..objects.pinned import Pinned
from ..objects.placement import flavors
from ..objects.pod import NewPod, build_pod
from ..objects.pod_sets import pod_sets
from ..observe.desired import Desired
from ..watching.cache import Cache
from .ownership import check_name, is_own

_RUNS = ("Provisioning", "Running")
"""Phases of a job that may have pods."""


class KueueClient:
    """Writes Workloads; reads classes of priority and ResourceFlavors."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api, self._cache = api, cache

    def workload(self, key: Key, job: Job) -> Body | None:
        """The job's Workload, not that of an earlier job of its name, whose admission was another's."""
        own_workloads = (
            body for body in self._cache.workloads(key) if is_own(body, job) and not is_over(body)
        )
        return next(own_workloads, None)

    async def read(self, key: Key, job: Job, *, required: bool) -> Body | ApiError | None:
        """As `workload`; or why it is unknown. What the cache lacks may be there: the server did not serve the kind
        for a moment, or somebody took its label. So that of a job that runs is asked for by name. `required`: jobs have
        a queue, whatever their labels say."""
        cached, runs = self.workload(key, job), job.status is not None and job.status.phase in _RUNS
        if cached is not None or not runs or not (required or job.queue is not None):
            return cached
        try:
            body = await self._api.get("Workload", job.namespace, job.name)
        except ApiError as error:
            if error.lacks_right or error.not_served:
                return error
            if error.status == 404:
                return None
            raise
        return body if is_own(body, job) and not is_over(body) else None

    async def stands(self, key: Key, job: Job, planned: Body | ApiError | None) -> bool:
        """True if the job needs no admission, or the one that was planned on is still in force.

        Raises:
            ApiError: why that is unknown.
        """
        if isinstance(planned, ApiError):
            raise planned
        if job.queue is None:
            return True
        now = await self.read(key, job, required=True)
        if isinstance(now, ApiError):
            raise now
        return stands(planned, now)

    async def line_up(self, job: Job, want: Desired, todo: Plan, current: Body | None) -> None:
        """Applies the plan's queue actions; `current`: the Workload that it was made on."""
        status = todo.status or job.status
        if todo.queue == "leave":
            await self.leave(job, current, status)
        elif todo.queue == "enter":
            await self.enter(job, want, current)
        elif todo.queue == "release":
            await self.release(job, current)
        elif todo.queue == "report" and current is not None:
            ready = status is not None and is_true(status, "RolesReady")
            patch = report(current, want.spec, ready=ready, stamp=time_text(self._api.clock.now()))
            if patch is not None:
                await self._merge(job, patch)

    async def release(self, job: Job, current: Body | None) -> None:
        """Gives the quota of an evicted Workload back, which stays in its queue; of any other, nothing."""
        patch = released(current, time_text(self._api.clock.now())) if current is not None else None
        if patch is not None:
            await self._merge(job, patch)

    async def enter(self, job: Job, want: Desired, current: Body | None) -> None:
        """Lines the job up by its Workload, made anew or changed in place. A dispatched job comes with its own."""
        if job.dispatched:
            return
        named = priority_class(job, want.pinned)
        class_ = await self._api.get(named[0], None, named[1]) if named else None
        priority = priority_fields(class_, current) if class_ else None
        body = workload(job, want.pinned, priority)
        if current is None:
            await check_name(self._api, job, body)
        self._cache.put(await self._api.apply(owned(body, job)))

    async def leave(self, job: Job, current: Body | None, status: JobStatus | None) -> None:
        """Gives the job's quota and its place in the queue back, where it has one. Of a deactivated Workload only the
        quota, until the job is deleted: the next Workload would be active. A dispatched one is finished when the job,
        whose newest `status` this is, has ended; it goes with the job."""
        if current is None or "deletionTimestamp" in current["metadata"]:
            return
        if is_dispatched(current) and "deletionTimestamp" not in job.body["metadata"]:
            if status is not None and status.phase in ENDED:
                succeeded, stamp = status.phase == "Succeeded", time_text(self._api.clock.now())
                end = finished(current, succeeded=succeeded, message=status.message, stamp=stamp)
                await self._merge(job, end)
            return
        if not deactivated(current) or "deletionTimestamp" in job.body["metadata"]:
            uid = current["metadata"]["uid"]
            going = await self._api.delete("Workload", job.namespace, job.name, uid=uid)
            # The watch may be late, and nobody is to start on a Workload that is gone.
            if going is None:
                self._cache.drop_uids("Workload", [uid])
            else:
                self._cache.put(going)
        else:
            await self.release(job, current)

    async def flavors(self, admitted: Body) -> dict[str, Body]:
        """The ResourceFlavors assigned to the job's Workload, by name."""
        return {name: await self._api.get("ResourceFlavor", None, name) for name in sorted(flavors(admitted))}

    async def _merge(self, job: Job, patch: Body) -> None:
        try:
            self._cache.put(await self._api.merge_status("Workload", job.namespace, job.name, patch))
        except ApiError as error:
            # Kueue wrote meanwhile, or it is gone: such news are looked at.
            if error.status not in (404, 409):
                raise


def priority_class(job: Job, pinned: Pinned) -> tuple[str, str] | None:
    """Kind and name of the class: the WorkloadPriorityClass of the job's label, else the PriorityClass of the first
    role whose pods have one."""
    if job.priority:
        return "WorkloadPriorityClass", job.priority
    kinds = pod_sets(pinned.config.spec)
    pods = (build_pod(pinned, NewPod(kind.role, kind.first, 1, resume=False), "") for kind in kinds)
    classes = (pod["spec"].get("priorityClassName") for pod in pods)
    return next((("PriorityClass", named) for named in classes if named), None)


def priority_fields(named: Mapping[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a Workload's spec that say its priority. `named`: the class. The value that the Workload `before`
    has from the same class stays: an administrator may have changed it."""
    group = named["apiVersion"].partition("/")[0]
    reference = {"group": group, "kind": named["kind"], "name": named["metadata"]["name"]}
    spec = before["spec"] if before else {}
    same = spec.get("priorityClassRef") == reference
    return {"priorityClassRef": reference, "priority": spec["priority"] if same else named["value"]}
