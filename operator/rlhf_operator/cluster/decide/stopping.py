"""Next step of a job that is suspended, or has ended: its pods go, and its quota is given back; pure."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.contract.status import ENDED, ClusterStatus, JobStatus
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...job.snapshot import Job, Pod
from ...status.condition import observed as seen_at
from ...status.condition import refused
from ...supervision.process_state import Finish, ProcessState
from ..observe.observed import Observed
from .conditions import ReconcileState
from .consequences import deletion, last_deletion
from .describe import describe
from .next_step import POLL_SECONDS, Plan, Queue, deletions, seconds_until_ttl
from .pod_groups import PodGroups, group_pods, membership, still_there
from .usage import count_usage, stop_counting

RUNTIME_SECONDS = 15.0
"""Poll interval of a job that waits for its runtime, seconds."""
SUSPEND_SECONDS = 600.0
"""Deadline of a trainer's last checkpoint before its pods are deleted, seconds."""
ASK_AGAIN_SECONDS = 600.0
"""Interval at which the API server is asked again for the pods of a job that it has refused as invalid, seconds."""
SIDECAR_SECONDS = 30.0
"""Grace period of a pod's sidecars after the role's container has ended at the end of a job, seconds: time to ship
logs.
"""

STAYING_SECONDS = 60.0
"""Interval at which the GPUs of servers that stay after a job's end are counted, seconds."""

ORPHANS = "orphan"
"""Finalizer of an object that is deleted without what it owns, as by `kubectl delete --cascade=orphan`."""


def suspend(
    observed: Observed,
    before: JobStatus,
    cluster: ClusterStatus,
    groups: PodGroups,
    processes: Sequence[ProcessState],
    now: datetime.datetime,
) -> Plan:
    """The trainer checkpoints and exits while the other roles still serve it; then every pod is deleted."""
    since = cluster.suspend_requested or now.isoformat(timespec="seconds")
    waited = (now - datetime.datetime.fromisoformat(since)).total_seconds()
    trainers = [pod for pod in groups.current.values() if pod.role is Role.TRAINER]
    first = next((pod for pod in trainers if pod.index == 0), None)
    done = first is not None and first.ended is not None and first.ended.code == 0
    saving = (
        first is not None
        and first.up
        and any(pod.ended is None for pod in trainers)
        and waited < SUSPEND_SECONDS
    )
    living = [pod for pod in groups.pods if pod.ended is None]
    finish, waits = None, observed.desired.waits is not None and not observed.desired.spec.suspend
    if done:
        finish = Finish("Succeeded", "Completed", "")
    elif not saving and not living:
        by_user = observed.desired.spec.suspend
        reason_and_message = ("Suspended", "") if by_user else _waiting(observed)
        finish = Finish("Suspended", *reason_and_message)
    cluster = cluster.model_copy(
        update={
            "suspend_requested": None if finish else since,
            # Of those that are still there when the job is resumed, none is counted again.
            "counted": still_there(cluster.counted, groups.pods),
        }
    )
    state = ReconcileState(
        observed=observed,
        before=before,
        processes=processes,
        restarts={role: status.restarts for role, status in before.roles.items()},
        cluster=cluster,
        pods=groups.pods,
        now=now,
        finish=finish,
        suspending=finish is None,
    )
    status, events = describe(state)
    leaving = () if saving else groups.pods
    queue = _queue(observed, idle=finish is not None and not living)
    # The answer to our own write of the Workload is no news, and what follows from it is still to be done.
    soon = not finish or groups.pods or queue is not None
    return Plan(
        status=status,
        delete=deletions([deletion(pod) for pod in leaving], groups.pods, now),
        members=membership(groups, observed.desired.spec),
        stop=saving,
        queue=queue,
        events=events,
        again=1.0 if soon else RUNTIME_SECONDS if waits else None,
    )


def _waiting(observed: Observed) -> tuple[str, str]:
    if (waits := observed.desired.waits) is not None:
        return waits.reason, waits.message
    if observed.deactivated:
        return "Deactivated", f"Workload {observed.job.name} is deactivated (spec.active: false)"
    return "WaitingForQuota", f"waiting for quota in queue {observed.job.queue}"


def report_if_admitted(observed: Observed) -> Queue | None:
    return "report" if observed.quota == "admitted" else None


def _queue(observed: Observed, *, idle: bool) -> Queue | None:
    """Quota is requested once, and returned when none of the job's pods is left. An evicted job keeps its place in the
    queue, and a deactivated one stays deactivated; one that outgrew its quota queues anew."""
    suspended, quota = observed.desired.spec.suspend or observed.desired.waits is not None, observed.quota
    if quota in ("absent", "outdated") and not suspended:
        return "enter"
    if not idle or quota in ("none", "absent", "unknown", "deleted"):
        return report_if_admitted(observed)
    if (suspended or quota == "outgrown") and not observed.deactivated:
        return "leave"
    return "release" if quota == "evicted" else report_if_admitted(observed)


def is_retained(spec: Spec, phase: str, pod: Pod) -> bool:
    """True for a pod that the job's end leaves running: a server that has started, where `podRetention` says so.
    Trainers never stay: they would train on."""
    retains = spec.pod_retention == "always" or (spec.pod_retention == "onFailure" and phase == "Failed")
    return retains and pod.begun and pod.ended is None and pod.role is not Role.TRAINER


def plan_deleted_job(metadata: Mapping[str, Any], pods: Sequence[Pod], now: datetime.datetime) -> Plan:
    """The next step of a deleted job that still exists: a finalizer holds it, perhaps for ever, and until it is gone
    the API server keeps what it owns. Its pods are deleted now, as they would be with it, unless they are to be
    orphaned."""
    if ORPHANS in metadata.get("finalizers", ()):
        return Plan(status=None, again=None)
    living = [pod for pod in pods if not pod.over]
    return Plan(
        status=None,
        delete=deletions([deletion(pod) for pod in living], pods, now),
        queue=None if living else "leave",
        again=POLL_SECONDS if living else None,
    )


def is_settled(job: Job, pods: Sequence[Any], workload: Mapping[str, Any] | None) -> bool:
    """True if a job has ended and nothing of it is left to do, whatever its spec says: its pods and its place in the
    queue are gone, and its status is of the present spec. A refused spec is read again: this release may accept it,
    and a refused pod the API server."""
    status, spec = job.status, job.body.get("spec") or {}
    if status is None or status.phase not in ENDED or status.observed_generation != job.generation:
        return False
    if refused(status):
        return False
    return not (pods or workload or status.gpus or spec.get("ttlSecondsAfterFinished") is not None)


def plan_ended_job(observed: Observed, before: JobStatus, now: datetime.datetime) -> Plan:
    """The step after a job has ended: no pod is created again, and ended pods stay for their logs until the job is
    deleted. GPUs count until their pods are over."""
    spec = observed.desired.spec
    groups = group_pods(spec, before.cluster or ClusterStatus(), observed.pods)
    holding = [pod for pod in groups.pods if not pod.over]
    leaving = [pod for pod in holding if not is_retained(spec, before.phase, pod)]
    ending = [
        last_deletion(pod)
        for pod in leaving
        if pod.ended is None or now.timestamp() > pod.ended.at + SIDECAR_SECONDS
    ]
    left = seconds_until_ttl(observed.job, before, now)
    expire = left is not None and left <= 0
    later = ASK_AGAIN_SECONDS if refused(before) else left
    if holding:
        later = min(later or STAYING_SECONDS, STAYING_SECONDS)
    # Of a runtime, which may say how many GPUs a pod has, the spec knows nothing more.
    used = (
        count_usage(before, groups.pods, spec, observed.prices, now)
        if spec.runtime is None
        else stop_counting(before, groups.pods, now)
    )
    return Plan(
        status=seen_at(before, observed.job.generation).model_copy(update=used),
        delete=deletions(ending, groups.pods, now),
        queue="leave"
        if observed.quota not in ("none", "absent") and not holding
        else report_if_admitted(observed),
        expire=expire,
        again=POLL_SECONDS if leaving else later if not expire else None,
    )
