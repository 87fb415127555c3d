"""Reads the start and the end of a pod from its status; pure."""

import datetime
import re
from collections.abc import Mapping
from typing import Any

from rlhf_api.host.redaction import end_of_log

from ..supervision.exit_reasons import BEYOND_LIMIT, exit_words, most_informative_line
from ..supervision.process_state import SIGTERMED, Ended
from .names import QUEUE_GATE

Body = Mapping[str, Any]

_DISRUPTED = {
    "Evicted",
    "NodeLost",
    "NodeShutdown",
    "Preempting",
    "Shutdown",
    "Terminated",
    # Kubelets do not admit a pod whose node is not, or no longer, as the scheduler saw it.
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodePorts",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
}
"""Reasons of ends that are not the pod's own, for servers that have no DisruptionTarget condition."""
OUT_OF_MEMORY = "OOMKilled"
"""Reason of a container that went beyond its limit of memory."""
LOST = ("ContainerStatusUnknown", "Unknown")
"""Reasons of kubelets, and of containerd, for a container that is gone with no end seen: its node has started again."""
NODE_UNREACHABLE = "NodeUnreachable"
GATED = "GatedByKueue"
_GATED_SAYS = (
    f"Kueue has put the pod itself into a queue (scheduling gate {QUEUE_GATE}): list RLHFJob.v1alpha1.rlhf.dev in "
    "integrations.externalFrameworks of Kueue's configuration, give the job a queue if its namespace has one named "
    "default, and suspend and resume the job"
)
OVER = ("Failed", "Succeeded")
"""Phases of a pod that has ended."""
_RACES = "OutOf"
"""Prefix of kubelets' reasons for a pod whose resources were taken by another, such as `OutOfcpu`."""


def seconds(text: str) -> float:
    """A Kubernetes time as seconds since the epoch."""
    return datetime.datetime.fromisoformat(text).timestamp()


def read_end(
    meta: Body, status: Body, container: Body, conditions: Mapping[str, Body], log: str
) -> Ended | None:
    """The end of the role's `container`, or of a pod whose kubelet reports none; None while it runs. `log`: what
    `kubectl logs` is to show of it."""
    end = container.get("state", {}).get("terminated")
    if status.get("phase") not in OVER and end is None:
        return None
    deletion_requested = _deletion_requested_at(meta)
    # The terminated state of a deleted pod's container that its kubelet has lost lacks a time.
    at = (
        _time(end, "finishedAt")
        or deletion_requested
        or (_time(status, "startTime") if end is None else None)
        or 0.0
    )
    reason, message = status.get("reason") or "", (status.get("message") or "").strip()
    # A pod that failed before it was deleted failed by itself: the report of a peer's end may arrive first, and the
    # whole gang is deleted then. So did one that was evicted for what it wrote, and its successors would do the same.
    disrupted = (deletion_requested is not None and at >= deletion_requested) or (
        _by_its_node(reason, end, conditions) and not re.search(BEYOND_LIMIT, message)
    )
    if end is None:  # evicted before it ran, or its node's kubelet lost it
        description = f"{reason or 'failed'}: {message or 'no container was run'}"
        code, description, last_lines = _failed_init(status) or (SIGTERMED, description, "")
        return Ended(at, code, description, disrupted, reason, last_lines)
    code = end.get("exitCode", SIGTERMED)
    how = exit_words(code) if end.get("reason") != OUT_OF_MEMORY else "ran out of memory (OOMKilled)"
    if reason:
        how += f" ({': '.join(filter(None, (reason, message)))})"
    last_lines = _last_lines(end)
    telling = most_informative_line(last_lines)
    cause = f"{how}: {telling}" if telling else how
    return Ended(
        at,
        code,
        f"{cause}; see `kubectl logs {log}`",
        disrupted,
        # The pod's reason is more precise than its container's exit.
        reason or end.get("reason") or "",
        last_lines,
    )


def was_ready(container: Body, conditions: Mapping[str, Body]) -> bool:
    """True of an ended container whose pod was ready at some time since it started: the end of that is the last change.
    One that was never started has the start of the epoch."""
    ready, end = conditions.get("Ready", {}), container.get("state", {}).get("terminated")
    started, changed = _time(end, "startedAt"), _time(ready, "lastTransitionTime")
    return ready.get("status") == "False" and bool(started and changed and started < changed)


def _by_its_node(reason: str, end: Body | None, conditions: Mapping[str, Body]) -> bool:
    targeted = conditions.get("DisruptionTarget", {}).get("status") == "True"
    lost = end is not None and end.get("reason") in LOST
    return targeted or lost or reason in _DISRUPTED or reason.startswith(_RACES)


def _last_lines(end: Body) -> str:
    """The termination message of a container, without secrets."""
    return end_of_log(end.get("message") or "").rstrip()


def has_kubelet_confirmed_end(meta: Body) -> bool:
    """True for a deleted pod for whose kubelet nobody waits any more."""
    return "deletionTimestamp" in meta and meta.get("deletionGracePeriodSeconds") == 0


def _deletion_requested_at(meta: Body) -> float | None:
    """The time at which the deletion of a pod was requested."""
    if "deletionTimestamp" not in meta:
        return None
    return seconds(meta["deletionTimestamp"]) - float(meta.get("deletionGracePeriodSeconds", 0))


def _time(body: Body | None, field: str) -> float | None:
    return seconds(body[field]) if body and body.get(field) else None


def node_unreachable(conditions: Mapping[str, Body]) -> bool:
    """True if Kubernetes' node controller has marked the pod because its node no longer reports: it sets Ready to False
    and leaves ContainersReady. A kubelet lets the two differ only for a readiness gate. A pod that was not ready has no
    mark."""
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    differ = ready.get("status") == "False" and containers.get("status") == "True"
    return differ and ready.get("reason") != "ReadinessGatesNotReady"


def is_gated(spec: Body) -> bool:
    """True if Kueue has put the pod into a queue of its own."""
    return any(gate.get("name") == QUEUE_GATE for gate in spec.get("schedulingGates", ()))


def waiting_reason(spec: Body, status: Body, conditions: Mapping[str, Body]) -> str | None:
    """Reason and message why the pod is not scheduled, does not start, or cannot be reached."""
    if node_unreachable(conditions):
        return f"{NODE_UNREACHABLE}: its node {spec.get('nodeName')} has stopped reporting"
    if is_gated(spec):
        return f"{GATED}: {_GATED_SAYS}"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason') or 'Unschedulable'}: {scheduled.get('message', '')}"
    if (failed := _failed_init(status)) is not None:
        return f"InitContainerFailed: {failed[1]}"
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason", "") not in ("", "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}"
    return None


def initializing(status: Body) -> str | None:
    """The init container that runs."""
    running = (
        c["name"] for c in status.get("initContainerStatuses", ()) if c.get("state", {}).get("running")
    )
    return next(running, None)


def is_unstarted(status: Body) -> bool:
    """True if no container of the pod runs or has run."""
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    begun = any({"running", "terminated"} & c.get("state", {}).keys() for c in containers)
    return not begun and status.get("phase") not in OVER


def _failed_init(status: Body) -> tuple[int, str, str] | None:
    """Exit code of a failed init container, a description of its end, and the last lines of its log."""
    for container in status.get("initContainerStatuses", ()):
        end = container.get("state", {}).get("terminated")
        if end and end.get("exitCode"):
            log = _last_lines(end)
            last_line = most_informative_line(log)
            description = f"init container {container['name']} {exit_words(end['exitCode'])}"
            return end["exitCode"], f"{description}: {last_line}" if last_line else description, log
    return None
