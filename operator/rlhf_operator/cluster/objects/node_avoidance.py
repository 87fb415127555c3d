"""New pods of a job prefer other nodes than those on which its pods failed with an error of a GPU or of NCCL; pure.

A gang that starts again would else get the node that has just become free, with its broken GPU. It is a preference: a
job with no other node starts there again.
"""

import datetime
from collections.abc import Sequence
from typing import Any

from rlhf_api.contract.status import FailureStatus, JobStatus

from ...supervision.exit_reasons import failure_type

AVOID_SECONDS = 3600.0
"""Time after a role's last failure for which its node is avoided, seconds."""
NODE_FAILURES = ("GpuError", "NcclError", "NcclTimeout")
"""Types of failures that a broken node may have caused."""
_WEIGHT = 100


def node_failures(status: JobStatus, now: datetime.datetime) -> list[FailureStatus]:
    """The roles' last failures for which their nodes are avoided now, of at most one node for each role."""
    failures = [role.last_failure for role in status.roles.values() if role.last_failure]
    return [
        failure
        for failure in failures
        if failure.node
        and failure_type(failure.reason) in NODE_FAILURES
        and (now - datetime.datetime.fromisoformat(failure.time)).total_seconds() < AVOID_SECONDS
    ]


def describe_avoidance(failures: Sequence[FailureStatus]) -> str:
    """The message of the event that tells of the nodes and of the failures on them."""
    nodes = [f"{f.node} ({f.process}: {f.reason[:200]})" for f in failures]
    hours = round(AVOID_SECONDS / 3600)
    return f"for {hours} h after their failures, new pods prefer other nodes than {', '.join(nodes)}"


def prefer_others(pod: dict[str, Any], nodes: tuple[str, ...]) -> dict[str, Any]:
    """The pod with a preference for each node not to be its own, beside the affinities that it has."""
    if not nodes:
        return pod
    affinity = pod["spec"].get("affinity") or {}
    node_affinity = affinity.get("nodeAffinity") or {}
    name = "preferredDuringSchedulingIgnoredDuringExecution"
    others = [
        {
            "weight": _WEIGHT,
            "preference": {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]},
        }
        for node in nodes
    ]
    preferred = {**node_affinity, name: [*(node_affinity.get(name) or ()), *others]}
    return {**pod, "spec": {**pod["spec"], "affinity": {**affinity, "nodeAffinity": preferred}}}
