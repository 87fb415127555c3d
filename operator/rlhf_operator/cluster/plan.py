"""Next step of a job, a pure function of one observation. This page and `reconcile.py` tell the whole story."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlhf_api.roles import Role
from rlhf_api.run import Membership
from rlhf_api.status import ENDED, ClusterStatus, JobStatus

from ..budget import Restarts, totals
from ..job_status import first_status
from ..job_status import observed as seen_at
from ..restart_policy import Finish, ProcessState, decide, pause_left
from . import autoscale, deadlines, windows
from .conditions import Event, Look, describe
from .consequences import Deletion, carried_out, deletion
from .observed import Observed
from .pod import NewPod
from .pod_groups import PodGroups, evicted, hung, lost, membership, seen, sort
from .usage import counted

POLL_SECONDS = 5.0
"""Poll interval of a running job, seconds."""
RUNTIME_SECONDS = 15.0
"""Poll interval of a job that waits for its runtime, seconds."""
SUSPEND_SECONDS = 600.0
"""Deadline of a trainer's last checkpoint before its pods are deleted, seconds."""
SIDECAR_SECONDS = 30.0
"""Grace period of a pod's sidecars after the role's container has ended at the end of a job, seconds: time to ship
logs.
"""


Queue = Literal["enter", "leave", "release", "report"]
"""Request the job's quota from Kueue, return it, return it but stay in the queue, or report the admitted pods'
state.
"""


@dataclass(frozen=True)
class Plan:
    """The status to write first, then what follows from it. Each part may fail or be cut short: the next look at the
    job sees what is missing."""

    status: JobStatus | None
    """None: unchanged."""
    companions: bool = False
    """Create the job's ConfigMap, service, policy and gang if missing."""
    create: tuple[NewPod, ...] = ()
    delete: tuple[Deletion, ...] = ()
    members: Membership = field(default_factory=Membership)
    stop: bool = False
    """Request a checkpoint and exit of the trainer."""
    events: tuple[Event, ...] = ()
    queue: Queue | None = None
    generators: int | None = None
    """Scale the job to this number."""
    expire: bool = False
    """Delete the job: its TTL has expired."""
    again: float | None = POLL_SECONDS
    """Seconds until the next reconcile, unless something happens before."""
    due: float | None = None
    """Seconds until a process that has ended may be started again; a look at the latest then."""


def plan(observed: Observed, now: datetime.datetime) -> Plan:
    """The next step of a job whose spec is valid."""
    job, spec = observed.job, observed.wanted.spec
    before = job.status or first_status(spec, None)
    if before.phase in ENDED:
        return _after_the_end(observed, before, now)
    cluster = before.cluster or ClusterStatus()
    sight = sort(spec, cluster, observed.pods)
    waits = observed.wanted.waits is not None
    suspend = spec.suspend or waits or observed.quota not in ("none", "left", "admitted")
    # Pods that the API server refused were never there, whatever the status says that it was about to make.
    unmade = cluster.unmade if observed.unmade is None else observed.unmade
    refused = unmade == cluster.attempt and not sight.of(Role.TRAINER)
    cluster = cluster.model_copy(update={"unmade": cluster.attempt if refused else None})
    begun = before.phase in ("Provisioning", "Running") and cluster.attempt > 0 and not refused
    restarts = windows.read(before, cluster)
    waited = bool(cluster.counted)  # what was to go before a start has been seen and counted
    last = 0.0 if waited else restarts.get(Role.TRAINER, Restarts()).last
    processes = seen(spec, sight, begun=begun, suspending=cluster.suspend_requested is not None, last=last)

    first = sight.current.get((Role.TRAINER, 0, 0))
    cluster = deadlines.with_progress(observed, first, cluster, now)
    activity = observed.trainer.activity if observed.trainer else None
    processes = hung(spec, processes, sight, cluster, now.timestamp(), activity)
    finish = deadlines.ended(observed, before, cluster, now)
    if finish is None and suspend:
        return _suspend(observed, before, cluster, sight, processes, now)
    # Who starts too slowly is ended by the kubelet's startup probe.
    actions = (
        (finish,)
        if finish
        else decide(spec, processes, restarts, now=now.timestamp(), startup_timeouts=False)
    )
    cluster = cluster.model_copy(update={"suspend_requested": None, "config": observed.wanted.pinned.name})

    made = carried_out(actions, spec, sight, cluster, restarts, now, waited=waited, refused=refused)
    finish = made.finish
    there = {pod.uid for pod in sight.pods}
    counted = {*cluster.counted, *made.counted}
    cluster = made.cluster.model_copy(
        update={"counted": tuple(sorted(counted & there)), "restarts": windows.written(made.restarts)}
    )
    create, delete = made.create, made.delete
    if finish is not None:
        create, delete = [], [deletion(pod) for pod in sight.pods if pod.ended is None]
    leaving = [pod for pod in sight.pods if pod.uid in counted or pod in sight.surplus]
    delete = [*map(deletion, evicted(sight)), *delete, *map(deletion, leaving)]
    generators = None
    if finish is None and observed.trainer is not None:
        scaling = autoscale.looked(spec, observed.trainer, cluster.scaling, processes)
        cluster = cluster.model_copy(update={"scaling": scaling})
        generators = autoscale.decided(spec, scaling) if scaling else None
    found = Look(
        observed=observed,
        before=before,
        processes=processes,
        restarts=totals(made.restarts),
        cluster=cluster,
        pods=sight.pods,
        now=now,
        finish=finish,
        creating=create,
    )
    status, events = describe(found)
    if generators is not None:
        events = (*events, autoscale.told(status, spec.generator.replicas, generators))
    return Plan(
        status=status,
        companions=finish is None,
        create=tuple(create),
        delete=_deletions(delete, sight, now),
        members=membership(sight),
        events=events,
        generators=generators,
        queue="leave" if observed.quota == "left" else _report(observed),
        again=POLL_SECONDS,
        due=pause_left(spec, processes, restarts, now.timestamp()) if finish is None else None,
    )


def _suspend(
    observed: Observed,
    before: JobStatus,
    cluster: ClusterStatus,
    sight: PodGroups,
    processes: Sequence[ProcessState],
    now: datetime.datetime,
) -> Plan:
    """The trainer checkpoints and exits while the other roles still serve it; then every pod is deleted."""
    since = cluster.suspend_requested or now.isoformat(timespec="seconds")
    waited = (now - datetime.datetime.fromisoformat(since)).total_seconds()
    trainers = [pod for pod in sight.current.values() if pod.role is Role.TRAINER]
    first = next((pod for pod in trainers if pod.index == 0), None)
    done = first is not None and first.ended is not None and first.ended.code == 0
    saving = (
        first is not None
        and first.up
        and any(pod.ended is None for pod in trainers)
        and waited < SUSPEND_SECONDS
    )
    living = [pod for pod in sight.pods if pod.ended is None]
    finish, waits = None, observed.wanted.waits is not None and not observed.wanted.spec.suspend
    if done:
        finish = Finish("Succeeded", "Completed", "")
    elif not saving and not living:
        by_user = observed.wanted.spec.suspend
        why = ("Suspended", "") if by_user else _waiting(observed)
        finish = Finish("Suspended", *why)
    cluster = cluster.model_copy(
        update={
            "suspend_requested": None if finish else since,
            # Of those that are still there when the job is resumed, none is counted again.
            "counted": tuple(sorted({pod.uid for pod in sight.counted})),
        }
    )
    found = Look(
        observed=observed,
        before=before,
        processes=processes,
        restarts={role: status.restarts for role, status in before.roles.items()},
        cluster=cluster,
        pods=sight.pods,
        now=now,
        finish=finish,
        suspending=finish is None,
    )
    status, events = describe(found)
    leaving = () if saving else sight.pods
    queue = _queue(observed, idle=finish is not None and not living)
    # The answer to our own write of the Workload is no news, and what follows from it is still to be done.
    soon = not finish or sight.pods or queue is not None
    return Plan(
        status=status,
        delete=_deletions([deletion(pod) for pod in leaving], sight, now),
        members=membership(sight),
        stop=saving,
        queue=queue,
        events=events,
        again=1.0 if soon else RUNTIME_SECONDS if waits else None,
    )


def _waiting(observed: Observed) -> tuple[str, str]:
    if (waits := observed.wanted.waits) is not None:
        return waits.reason, waits.message
    if observed.deactivated:
        return "Deactivated", f"Workload {observed.job.name} is deactivated (spec.active: false)"
    return "WaitingForQuota", f"waits in queue {observed.job.queue}"


def _report(observed: Observed) -> Queue | None:
    return "report" if observed.quota == "admitted" else None


def _queue(observed: Observed, *, idle: bool) -> Queue | None:
    """Quota is asked for once, and given back where none of the job's pods is left. An evicted job keeps its place's
    history, and one that was deactivated stays so; one that outgrew its quota lines up anew."""
    suspended, quota = observed.wanted.spec.suspend or observed.wanted.waits is not None, observed.quota
    if quota in ("absent", "outdated") and not suspended:
        return "enter"
    if not idle or quota in ("none", "absent"):
        return _report(observed)
    if (suspended or quota == "outgrown") and not observed.deactivated:
        return "leave"
    return "release" if quota == "evicted" else _report(observed)


def _after_the_end(observed: Observed, before: JobStatus, now: datetime.datetime) -> Plan:
    """Nothing is made again; what ended stays for its log until the job goes. GPUs count until their pods are over."""
    spec = observed.wanted.spec
    sight = sort(spec, before.cluster or ClusterStatus(), observed.pods)
    holding = [pod for pod in sight.pods if not pod.over]
    ending = [
        deletion(pod)
        for pod in holding
        if pod.ended is None or now.timestamp() > pod.ended.at + SIDECAR_SECONDS
    ]
    left = None
    lifetime = spec.ttl_seconds_after_finished
    if lifetime is not None and before.completion_time is not None:
        ended = datetime.datetime.fromisoformat(before.completion_time)
        left = (ended + datetime.timedelta(seconds=lifetime) - now).total_seconds()
    expire = left is not None and left <= 0
    return Plan(
        status=seen_at(before, observed.job.generation).model_copy(
            update=counted(before, sight.pods, spec, observed.prices, now)
        ),
        delete=_deletions(ending, sight, now),
        queue="leave" if observed.quota not in ("none", "absent") and not holding else _report(observed),
        expire=expire,
        again=POLL_SECONDS if holding else left if not expire else None,
    )


def _deletions(wanted: Sequence[Deletion], sight: PodGroups, now: datetime.datetime) -> tuple[Deletion, ...]:
    """Deletions to start: of pods not being deleted yet, and of those that are given up."""
    going = {pod.uid: pod.deletion_deadline for pod in sight.pods if pod.deletion_deadline is not None}
    new = {each.uid: each for each in wanted if each.uid not in going}
    given_up = [deletion(pod, 0) for pod in sight.pods if lost(pod, now.timestamp())]
    return (*new.values(), *given_up)
