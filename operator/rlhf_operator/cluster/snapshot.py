"""A job and its pods, parsed from the API server's objects for the planner; pure."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rlhf_api.problems import from_pydantic
from rlhf_api.roles import Role
from rlhf_api.status import JobStatus

from ..exit_reasons import exit_words, telling_line
from ..job_status import own_conditions
from ..redaction import redacted
from ..restart_policy import Ended
from .names import ATTEMPT, CHECKPOINT, INDEX, JOB, QUEUE, RANK, ROLE, pod_name
from .ports import PORT

Body = Mapping[str, Any]

_DISRUPTED = {
    "Evicted",
    "NodeLost",
    "NodeShutdown",
    "NodeAffinity",
    "Preempting",
    "Shutdown",
    "Terminated",
    "UnexpectedAdmissionError",
}
"""Reasons of a pod's end that are not its own, for servers that have no DisruptionTarget condition."""
OVER = ("Failed", "Succeeded")
"""Phases of a pod that has ended."""
_RACES = "OutOf"
"""Prefix of kubelets' reasons for a pod whose resources were taken by another, such as `OutOfcpu`."""
SIGTERMED = 128 + 15


@dataclass(frozen=True)
class Job:
    """An RLHFJob as stored: its spec unvalidated, its status as written by the operator."""

    body: Body
    name: str
    namespace: str
    uid: str
    generation: int
    queue: str | None
    """The job's Kueue queue."""
    checkpoint: str | None
    """Newest checkpoint request."""
    status: JobStatus | None
    unreadable: str | None = None
    """Validation errors of a status written by another release, which must not be overwritten."""

    @classmethod
    def of(cls, body: Body) -> "Job":
        meta = body["metadata"]
        status, unreadable = _status(body.get("status"))
        return cls(
            body=body,
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            generation=meta.get("generation", 1),
            queue=meta.get("labels", {}).get(QUEUE),
            checkpoint=meta.get("annotations", {}).get(CHECKPOINT),
            status=status,
            unreadable=unreadable,
        )


@dataclass(frozen=True)
class Pod:
    """One pod of a job; times are seconds since the epoch."""

    name: str
    uid: str
    role: Role
    index: int
    attempt: int
    address: str | None
    """The pod's IP address, once assigned."""
    started: float
    """Start time of its container; before that, the pod's creation time."""
    up: bool
    """True once its container has passed the startup probe."""
    ready: bool
    ended: Ended | None = None
    deletion_deadline: float | None = None
    """Deletion deadline, by which its kubelet has to end it; None unless it is being deleted."""
    over: bool = False
    """True if none of its containers runs any more and its resources are free; a sidecar may outlast the role's."""
    waiting_reason: str | None = None
    """Reason why it does not start."""
    scheduled: bool = True
    """False once the scheduler has reported that it found no node."""
    node: str | None = None
    initializing: str | None = None
    """The running init container."""
    port: int = PORT
    """Its HTTP port."""
    rank: int = 0
    """Rank in a multi-pod generator."""

    @property
    def replica(self) -> tuple[Role, int]:
        """The replica, whose pods live and die together."""
        return self.role, self.index

    @property
    def serving(self) -> bool:
        return self.address is not None and self.ended is None

    @property
    def url(self) -> str:
        """Base URL; only for a pod with an address."""
        host = f"[{self.address}]" if ":" in (self.address or "") else self.address
        return f"http://{host}:{self.port}"

    @classmethod
    def of(cls, body: Body) -> "Pod":
        """Parses a pod. Raises KeyError or ValueError for one that is not the operator's."""
        meta, status = body["metadata"], body.get("status", {})
        labels = meta["labels"]
        containers: Sequence[Body] = status.get("containerStatuses", ())
        role_container = next((c for c in containers if c["name"] == "role"), {})
        conditions = {c["type"]: c for c in status.get("conditions", ())}
        running = role_container.get("state", {}).get("running")
        scheduled = conditions.get("PodScheduled", {}).get("status") != "False"
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            role=Role(labels[ROLE]),
            index=int(labels[INDEX]),
            attempt=int(labels[ATTEMPT]),
            address=status.get("podIP") or None,
            started=seconds(running["startedAt"]) if running else seconds(meta["creationTimestamp"]),
            up=bool(role_container.get("started")),
            ready=conditions.get("Ready", {}).get("status") == "True",
            ended=_ended(meta, status, role_container, conditions),
            deletion_deadline=seconds(meta["deletionTimestamp"]) if "deletionTimestamp" in meta else None,
            over=status.get("phase") in OVER,
            waiting_reason=_waiting_reason(status, conditions),
            scheduled=scheduled,
            node=body.get("spec", {}).get("nodeName"),
            initializing=_initializing(status),
            port=_port(body.get("spec", {})),
            rank=int(labels.get(RANK, "0")),
        )


def is_marked(body: Body, job: str) -> bool:
    """True if the pod has the labels of the job and of the role, index and rank in its name."""
    meta = body["metadata"]
    labels: Mapping[str, str] = meta.get("labels") or {}
    role, index = labels.get(ROLE, ""), labels.get(INDEX, "")
    if labels.get(JOB) != job or role not in list(Role) or not labels.get(ATTEMPT, "").isdecimal():
        return False
    rank = labels.get(RANK, "0")
    numbered = index.isdecimal() and rank.isdecimal()
    return numbered and bool(meta["name"] == pod_name(job, Role(role), int(index), int(rank)))


def _port(spec: Body) -> int:
    """The HTTP port, as declared by the release that created the pod."""
    containers: Sequence[Body] = spec.get("containers", ())
    ports: Sequence[Body] = next((c.get("ports", ()) for c in containers if c["name"] == "role"), ())
    return next((port["containerPort"] for port in ports if port.get("name") == "http"), PORT)


def seconds(text: str) -> float:
    """A Kubernetes time as seconds since the epoch."""
    return datetime.datetime.fromisoformat(text).timestamp()


def _status(body: Any) -> tuple[JobStatus | None, str | None]:
    """The status, None before the first one; or what cannot be read of it. Other controllers may write conditions."""
    if not body or not {"phase", "cluster"} & body.keys():
        return None, None
    try:
        ours = {**body, "conditions": own_conditions(body) or ()}
        return JobStatus.model_validate(ours, strict=False), None
    except ValidationError as error:
        return None, "; ".join(map(str, from_pydantic(error, JobStatus, ("status",)).problems))


def _ended(meta: Body, status: Body, container: Body, conditions: Mapping[str, Body]) -> Ended | None:
    end = container.get("state", {}).get("terminated")
    if status.get("phase") not in OVER and end is None:
        return None
    told = _told_to_end(meta)
    # The terminated state of a deleted pod's container that its kubelet has lost lacks a time.
    at = _time(end, "finishedAt") or told or (_time(status, "startTime") if end is None else None) or 0.0
    disrupted = (
        # A pod that failed before it was deleted failed by itself: the report of a peer's end may arrive first, and
        # the whole gang is deleted then.
        (told is not None and at >= told)
        or status.get("reason") in _DISRUPTED
        or str(status.get("reason")).startswith(_RACES)
        or conditions.get("DisruptionTarget", {}).get("status") == "True"
    )
    if end is None:  # evicted before it ran, or its node's kubelet lost it
        said = f"{status.get('reason') or 'failed'}: {status.get('message') or 'no container was run'}"
        code, said, log = _failed_init(status) or (SIGTERMED, said, "")
        return Ended(at, code, said, disrupted, status.get("reason") or "", log)
    code = end.get("exitCode", SIGTERMED)
    how = exit_words(code) if end.get("reason") != "OOMKilled" else "ran out of memory (OOMKilled)"
    log = redacted(end.get("message") or "").rstrip()
    telling = telling_line(log)
    why = f"{how}: {telling}" if telling else how
    return Ended(
        at,
        code,
        f"{why}; see `kubectl logs {meta['name']}`",
        disrupted,
        # The pod's reason is more precise than its container's exit.
        status.get("reason") or end.get("reason") or "",
        log,
    )


def _told_to_end(meta: Body) -> float | None:
    """The time at which the deletion of a pod was requested."""
    if "deletionTimestamp" not in meta:
        return None
    return seconds(meta["deletionTimestamp"]) - float(meta.get("deletionGracePeriodSeconds", 0))


def _time(body: Body | None, field: str) -> float | None:
    return seconds(body[field]) if body and body.get(field) else None


def _waiting_reason(status: Body, conditions: Mapping[str, Body]) -> str | None:
    """Reason and message why the pod is not scheduled or does not start."""
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason', 'Unschedulable')}: {scheduled.get('message', '')}"
    if (failed := _failed_init(status)) is not None:
        return f"InitContainerFailed: {failed[1]}"
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    return None


def _initializing(status: Body) -> str | None:
    running = (
        c["name"] for c in status.get("initContainerStatuses", ()) if c.get("state", {}).get("running")
    )
    return next(running, None)


def _failed_init(status: Body) -> tuple[int, str, str] | None:
    """Exit code of a failed init container, a description of its end, and the last lines of its log."""
    for container in status.get("initContainerStatuses", ()):
        end = container.get("state", {}).get("terminated")
        if end and end.get("exitCode"):
            log = redacted(end.get("message") or "").rstrip()
            told = telling_line(log)
            said = f"init container {container['name']} {exit_words(end['exitCode'])}"
            return end["exitCode"], f"{said}: {told}" if told else said, log
    return None
