"""Kueue: a job with a queue's label holds a Workload (kueue.x-k8s.io/v1beta2), and runs while that is admitted; pure.

The Workload stands for the whole job, so that its quota is granted at once and taken back at once. It is kept through
an eviction, with its priority and its count of requeues, and made anew where the admitted one is too small for the job.
What an admission says of the pods is put on them by `placement`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from rlhf_api.contract.run import pods_each
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...job.names import CONFIG, ORIGIN, PRIORITY, common_labels
from ...job.snapshot import Job
from ...kube.kinds import KUEUE
from .pinned import Pinned
from .placement import topology_request
from .pod import NewPod, build_pod
from .pod_sets import PodSet, pod_sets

Body = dict[str, Any]

_Outside = Literal["none", "left", "absent", "unknown", "deleted"]
_Inside = Literal["outdated", "waiting", "admitted", "outgrown", "evicted"]
Quota = _Outside | _Inside
"""`none`: the job is in no queue; `left`: but was in one. `absent`: it has no Workload yet; `unknown`: the API server
does not say whether it has; `deleted`: somebody has deleted its Workload, which is going; `outdated`: its Workload
waits in another queue or size than the job's, or for pods of another configuration; `outgrown`: has quota so, and the
job is beyond it; `evicted`: is to give its quota back."""
_REQUEUED = ("Preempted", "NodeFailures")
"""Reasons of evictions after which the integration lets a Workload line up again at once; after others Kueue does, in
its own time."""
_NOT_READY = "not all pods are ready"


def quota(
    job: Job, spec: Spec, workload: Mapping[str, Any] | None, config: str, *, started: bool = False
) -> Quota:
    """State of the job's Workload in its queue. `config`: name of the configuration that the job runs, if it has
    `started`, or would start with: not on quota for the pods of another one."""
    if workload is None:
        return "none" if job.queue is None else "absent"
    if job.queue is None:
        return "left"
    held = _true_conditions(workload)
    if "deletionTimestamp" in workload["metadata"]:
        return "deleted"
    if not _has_quota(workload):
        notes = workload["metadata"].get("annotations", {})
        requested = (
            _counts(workload),
            workload["spec"].get("queueName"),
            notes.get(CONFIG),
            notes.get(PRIORITY),
        )
        required = _requested_pods(spec), job.queue, config, job.priority
        if requested != required and not is_dispatched(workload):
            return "outdated"
        return "waiting"
    if "Evicted" in held:
        return "evicted"
    reserved = {name: count - _reclaimed(workload).get(name, 0) for name, count in _counts(workload).items()}
    fits = all(count <= reserved.get(name, 0) for name, count in _requested_pods(spec).items())
    same = started or _config(workload) in (None, config)
    if not (fits and same) or workload["spec"].get("queueName") != job.queue:
        return "outgrown"
    return "admitted" if "Admitted" in held else "waiting"


def stands(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> bool:
    """True if the admission that a plan was made on is still as it was: pods are made on no other."""
    if before is None or now is None or "deletionTimestamp" in now["metadata"]:
        return False
    held = _true_conditions(now)
    return "Admitted" in held and "Evicted" not in held and _admission(before) == _admission(now)


def kept_in_queue(job: Job, workload: Mapping[str, Any] | None, *, required: bool) -> Job:
    """The job; if limits require a queue and its label was removed, with its Workload's queue, for as long as it has a
    Workload."""
    if workload is None or job.queue is not None or not required:
        return job
    return replace(job, queue=workload["spec"].get("queueName"))


def is_dispatched(workload: Mapping[str, Any]) -> bool:
    """True for a Workload that MultiKueue made here: it withdraws it, and learns from it that the job is over."""
    return ORIGIN in workload["metadata"].get("labels", {})


def is_over(workload: Mapping[str, Any]) -> bool:
    """True for a dispatched one that its cluster has been told the end of; it stays until it is withdrawn."""
    return is_dispatched(workload) and "Finished" in _true_conditions(workload)


def deactivated(workload: Mapping[str, Any] | None) -> bool:
    """True if an administrator has taken the Workload out of its queue."""
    return workload is not None and not workload["spec"].get("active", True)


def workload(job: Job, pinned: Pinned, priority: Body | None = None) -> Body:
    """The Workload that Kueue admits: a pod set for each kind of pods, with its pods as they would be. `priority`: the
    fields that say its priority."""
    spec, counts, nameless = pinned.config.spec, _requested_pods(pinned.config.spec), replace(pinned, name="")
    pods = [
        (each, build_pod(nameless, NewPod(each.role, each.first, attempt=0, resume=False), job.uid))
        for each in pod_sets(spec)
    ]
    return {
        "apiVersion": KUEUE,
        "kind": "Workload",
        "metadata": {
            "name": job.name,
            "labels": common_labels(job.name),
            "annotations": {
                CONFIG: pinned.name,
                **({PRIORITY: job.priority} if job.priority else {}),
            },
        },
        "spec": {
            "queueName": job.queue,
            **(priority or {}),
            "podSets": [_pod_set(spec, own, counts[own.name], pod) for own, pod in pods],
        },
    }


def _pod_set(spec: Spec, own: PodSet, count: int, pod: Body) -> Body:
    pod_set = {"name": own.name, "count": count, "template": {"spec": pod["spec"]}}
    size = pods_each(spec, own.role)
    request = topology_request(pod["metadata"].get("annotations", {}), count // size, size)
    return {**pod_set, "topologyRequest": request} if request else pod_set


def released(workload: Mapping[str, Any], stamp: str) -> Body | None:
    """Merge patch of the status once the evicted job's pods are gone: its quota is free. Kueue leaves this to the
    integration that runs the pods. None if it is not evicted, or has no quota."""
    if "Evicted" not in _true_conditions(workload) or not _has_quota(workload):
        return None
    evicted = next(c for c in workload["status"]["conditions"] if c["type"] == "Evicted")
    message, requeued = str(evicted.get("message", "")), evicted.get("reason") in _REQUEUED
    changes = {
        "QuotaReserved": ("False", "Pending", message),
        "Admitted": ("False", "NoReservation", "the workload has no reservation"),
        "Requeued": (str(requeued), str(evicted.get("reason", "Evicted")), message),
        "PodsReady": ("False", "WaitForStart", _NOT_READY),
    }
    return _status(workload, stamp, changes, {"admission": None, "reclaimablePods": None})


def finished(workload: Mapping[str, Any], *, succeeded: bool, message: str, stamp: str) -> Body:
    """Merge patch of the status of a Workload whose job is over."""
    reason = "Succeeded" if succeeded else "Failed"
    return _status(workload, stamp, {"Finished": ("True", reason, message)}, {})


def report(workload: Mapping[str, Any], spec: Spec, *, ready: bool, stamp: str) -> Body | None:
    """Merge patch of an admitted Workload's status, or None if it is up to date: whether its pods are ready, and the
    quota of scaled-down generators as reclaimable."""
    conditions = workload.get("status", {}).get("conditions", ())
    before: Mapping[str, Any] = next((c for c in conditions if c["type"] == "PodsReady"), {})
    free = {name: count - _requested_pods(spec).get(name, 0) for name, count in _counts(workload).items()}
    free = {name: count for name, count in free.items() if count > 0}
    if before.get("status") == str(ready) and free == _reclaimed(workload):
        return None
    changes = {"PodsReady": _pods_ready(before, ready=ready)}
    reclaimable = [{"name": name, "count": count} for name, count in free.items()]
    return _status(workload, stamp, changes, {"reclaimablePods": reclaimable} if reclaimable else {})


def _pods_ready(before: Mapping[str, Any], *, ready: bool) -> tuple[str, str, str]:
    """Status, reason and message of PodsReady. Kueue has one deadline for the start and another for a recovery."""
    if ready:
        recovered = before.get("reason") in ("WaitForRecovery", "Recovered")
        return "True", "Recovered" if recovered else "Started", "all pods are ready"
    if before.get("status") == "True" or before.get("reason") == "WaitForRecovery":
        return "False", "WaitForRecovery", "a pod that was ready is ready no more"
    return "False", "WaitForStart", _NOT_READY


def _admission(workload: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parts of an admission that pods are made by: the Workload's uid, its assignments, updates of its checks."""
    status: Mapping[str, Any] = workload.get("status", {})
    updates = [check.get("podSetUpdates") for check in status.get("admissionChecks") or ()]
    return workload["metadata"].get("uid"), status.get("admission"), updates


def _config(workload: Mapping[str, Any]) -> str | None:
    """Of a dispatched one none: its annotation is of the cluster that it comes from."""
    if is_dispatched(workload):
        return None
    name: str | None = workload["metadata"].get("annotations", {}).get(CONFIG)
    return name


def _true_conditions(workload: Mapping[str, Any]) -> set[str]:
    return {c["type"] for c in workload.get("status", {}).get("conditions", ()) if c["status"] == "True"}


def _has_quota(workload: Mapping[str, Any]) -> bool:
    return bool(_true_conditions(workload) & {"QuotaReserved", "Admitted"})


def _counts(workload: Mapping[str, Any]) -> dict[str, int]:
    return {each["name"]: each["count"] for each in workload["spec"]["podSets"]}


def _requested_pods(spec: Spec) -> dict[str, int]:
    """Pods of each set for which quota is requested; with autoscaling, the maximum number of generators."""
    counts = {each.name: each.count * pods_each(spec, each.role) for each in pod_sets(spec)}
    scale, generator = spec.generator.autoscale, Role.GENERATOR
    if scale is not None and generator in counts:
        most = scale.max_replicas * pods_each(spec, generator)
        counts[generator.value] = max(counts[generator.value], most)
    return counts


def _reclaimed(workload: Mapping[str, Any]) -> dict[str, int]:
    return {each["name"]: each["count"] for each in workload.get("status", {}).get("reclaimablePods") or ()}


def _status(
    workload: Mapping[str, Any], stamp: str, changes: Mapping[str, tuple[str, str, str]], fields: Body
) -> Body:
    """Merge patch of the status with all conditions, the changed ones replaced, for the resourceVersion that was
    read."""
    before = {c["type"]: c for c in workload.get("status", {}).get("conditions", ())}
    for kind, (status, reason, message) in changes.items():
        old = before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else stamp
        before[kind] = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": since,
            "observedGeneration": workload["metadata"].get("generation", 1),
        }
    version = workload["metadata"]["resourceVersion"]
    return {
        "metadata": {"resourceVersion": version},
        "status": {"conditions": list(before.values()), **fields},
    }
