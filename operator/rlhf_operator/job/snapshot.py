"""A job and its pods, parsed from the API server's objects for the planner; pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from rlhf_api.contract.sandbox_server import CLAIMED
from rlhf_api.contract.status import JobStatus
from rlhf_api.errors.messages import from_pydantic
from rlhf_api.roles import Role

from ..status.condition import own_conditions
from ..supervision.exit_reasons import BEYOND_LIMIT
from ..supervision.process_state import Ended
from .baseline import as_object
from .names import (
    ATTEMPT,
    CHECKPOINT,
    CONTROLLER,
    INDEX,
    JOB,
    MANAGED_BY,
    OPERATOR,
    ORIGIN,
    PRIORITY,
    QUEUE,
    RANK,
    ROLE,
    pod_name,
)
from .pod_resources import claims, devices
from .pod_status import (
    OUT_OF_MEMORY,
    OVER,
    Body,
    has_kubelet_confirmed_end,
    initializing,
    is_gated,
    is_unstarted,
    node_unreachable,
    read_end,
    seconds,
    waiting_reason,
    was_ready,
)
from .ports import PORT
from .trimmed import REQUEST


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
    priority: str | None
    """The Kueue WorkloadPriorityClass that the job names."""
    checkpoint: str | None
    """Newest checkpoint request, cut to the length that a status keeps."""
    status: JobStatus | None
    controller: str = CONTROLLER
    """The one that the spec names, whose the job and its status are."""
    dispatched: bool = False
    """True for the copy that MultiKueue made on this cluster, with its Workload."""
    unreadable: str | None = None
    """Validation errors of a status written by another release, which must not be overwritten."""

    @classmethod
    def of(cls, body: Body) -> "Job":
        meta = body["metadata"]
        status, unreadable = _status(body.get("status"))
        request = meta.get("annotations", {}).get(CHECKPOINT)
        return cls(
            body=body,
            name=meta["name"],
            namespace=meta["namespace"],
            uid=meta["uid"],
            generation=meta.get("generation", 1),
            queue=meta.get("labels", {}).get(QUEUE),
            priority=meta.get("labels", {}).get(PRIORITY),
            checkpoint=request and request[:REQUEST],
            status=status,
            controller=as_object(body.get("spec")).get("managedBy") or CONTROLLER,
            dispatched=ORIGIN in meta.get("labels", {}),
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
    grace: float = 0.0
    """Of its deletion, seconds."""
    held_by: str = ""
    """Finalizers that alone keep a deleted pod: its kubelet has confirmed its end, or it was given up."""
    begun: bool = False
    """True once its role's container has started, which waits for a node, for images and for init containers."""
    over: bool = False
    """True if none of its containers runs any more and its resources are free; a sidecar may outlast the role's
    container."""
    waiting_reason: str | None = None
    """Reason why it does not start, or cannot be reached."""
    scheduled: bool = True
    """False once the scheduler has reported that it found no node."""
    gated: bool = False
    """True if Kueue has put it into a queue of its own, beside its job's."""
    devices: tuple[tuple[str, int], ...] = ()
    """Devices that it asks for, such as GPUs, by the names of their resources."""
    claims: tuple[str, ...] = ()
    """Names of its ResourceClaims."""
    node: str | None = None
    unreachable: bool = False
    """True if its node no longer reports to Kubernetes."""
    initializing: str | None = None
    """The running init container."""
    unstarted: bool = False
    """True if it has a node, whose kubelet has not started any of its containers yet."""
    port: int = PORT
    """Port of the pod's HTTP server."""
    rank: int = 0
    """Rank in a multi-pod generator."""
    pod_uid: str = ""
    """The pod's uid where several processes share it; `uid` is then of one start of one of them."""
    last_uid: str = ""
    """`uid` of the start before, in the same pod."""
    was_ready: bool = False
    """True of an ended one that had been ready."""

    @property
    def object_uid(self) -> str:
        """The uid by which the API server knows it."""
        return self.pod_uid or self.uid

    @property
    def restarts_in_place(self) -> bool:
        """True if its kubelet starts its ended process again, in the same pod: one that shares its pod, and failed."""
        ended = self.ended is not None and self.ended.code != 0
        return bool(self.pod_uid) and ended and not self.over and self.deletion_deadline is None

    @property
    def is_spent(self) -> bool:
        """True if it was a sandbox and its episode is over, however that ended: the next one has another pod. Its
        commands may write another message, and use up its memory."""
        if self.role is not Role.SANDBOX or self.ended is None:
            return False
        return self.ended.log == CLAIMED or self.was_ready

    @property
    def is_exhausted(self) -> bool:
        """True if it was a sandbox, and what its commands took of memory or disk has ended it: no fault of its node."""
        if self.role is not Role.SANDBOX or self.ended is None or self.ended.disrupted:
            return False
        return self.ended.cause == OUT_OF_MEMORY or bool(re.search(BEYOND_LIMIT, self.ended.reason))

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
    def of(cls, body: Body, log: str | None = None) -> "Pod":
        """Parses a pod; `log`: what `kubectl logs` is to show, its name unless given. Raises KeyError or ValueError for
        one that is not the operator's."""
        body = _without_nulls(body)  # as kubelets that are no kubelets write times that they do not know
        meta, status = body["metadata"], body.get("status", {})
        labels = meta["labels"]
        containers: Sequence[Body] = status.get("containerStatuses", ())
        role_container = next((c for c in containers if c["name"] == "role"), {})
        conditions = {c["type"]: c for c in status.get("conditions", ())}
        running = role_container.get("state", {}).get("running")
        scheduled = conditions.get("PodScheduled", {}).get("status") != "False"
        spec = body.get("spec", {})
        node = spec.get("nodeName")
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            role=Role(labels[ROLE]),
            index=int(labels[INDEX]),
            attempt=int(labels[ATTEMPT]),
            address=status.get("podIP") or None,
            started=seconds((running or {}).get("startedAt") or meta["creationTimestamp"]),
            up=bool(role_container.get("started")),
            ready=conditions.get("Ready", {}).get("status") == "True",
            ended=read_end(meta, status, role_container, conditions, log or meta["name"]),
            deletion_deadline=seconds(meta["deletionTimestamp"]) if "deletionTimestamp" in meta else None,
            grace=float(meta.get("deletionGracePeriodSeconds", 0)),
            held_by=", ".join(meta.get("finalizers", ())) if has_kubelet_confirmed_end(meta) else "",
            begun=bool({"running", "terminated"} & role_container.get("state", {}).keys()),
            over=status.get("phase") in OVER,
            waiting_reason=waiting_reason(spec, status, conditions),
            scheduled=scheduled and not is_gated(spec),
            gated=is_gated(spec),
            devices=devices(spec),
            claims=claims(spec, status),
            node=node,
            unreachable=node_unreachable(conditions),
            initializing=initializing(status),
            unstarted=node is not None and is_unstarted(status),
            port=_port(spec),
            rank=int(labels.get(RANK, "0")),
            was_ready=was_ready(role_container, conditions),
        )


def _without_nulls(value: Any) -> Any:
    """A null stands for what is not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return [*map(_without_nulls, value)] if isinstance(value, list) else value


def is_marked(body: Body, job: str) -> bool:
    """True if the pod has the label that the watch selects, and those of the job and of the role, index and rank in its
    name."""
    meta = body["metadata"]
    labels: Mapping[str, str] = meta.get("labels") or {}
    role, index = labels.get(ROLE, ""), labels.get(INDEX, "")
    if labels.get(MANAGED_BY) != OPERATOR or labels.get(JOB) != job:
        return False
    if role not in list(Role) or not labels.get(ATTEMPT, "").isdecimal():
        return False
    rank = labels.get(RANK, "0")
    numbered = index.isdecimal() and rank.isdecimal()
    return numbered and bool(meta["name"] == pod_name(job, Role(role), int(index), int(rank)))


def _port(spec: Body) -> int:
    """The HTTP port, as declared by the release that created the pod."""
    containers: Sequence[Body] = spec.get("containers", ())
    ports: Sequence[Body] = next((c.get("ports", ()) for c in containers if c["name"] == "role"), ())
    return next((port["containerPort"] for port in ports if port.get("name") == "http"), PORT)


def _status(body: Any) -> tuple[JobStatus | None, str | None]:
    """The parsed status, None before the first one; or its validation errors. Other controllers may write conditions
    into it; any other field is of an operator, perhaps of a release that names all its fields otherwise."""
    if not body or body.keys() <= {"conditions"}:
        return None, None
    try:
        ours = {**body, "conditions": own_conditions(body) or ()}
        return JobStatus.model_validate(ours, strict=False), None
    except ValidationError as error:
        return None, "; ".join(map(str, from_pydantic(error, JobStatus, ("status",)).problems))
