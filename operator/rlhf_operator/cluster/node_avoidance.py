"""New pods of a job prefer other nodes than those on which its pods failed with an error of a GPU or of NCCL; pure.

A gang that starts again would else get the node that has just become free, with its broken GPU. It is a preference: a
job with no other node starts there again.
"""

import datetime
from typing import Any

from rlhf_api.status import JobStatus

from ..exit_reasons import failure_type

AVOID_SECONDS = 3600.0
"""Time after a role's last failure for which its node is avoided, seconds."""
NODE_FAILURES = ("GpuError", "NcclError", "NcclTimeout")
"""Types of failures that a broken node may have caused."""
_WEIGHT = 100


def nodes_to_avoid(status: JobStatus, now: datetime.datetime) -> tuple[str, ...]:
    """Nodes of the roles' last failures, of at most one node for each role."""
    failures = [role.last_failure for role in status.roles.values() if role.last_failure]
    found = {
        failure.node
        for failure in failures
        if failure.node
        and failure_type(failure.reason) in NODE_FAILURES
        and (now - datetime.datetime.fromisoformat(failure.time)).total_seconds() < AVOID_SECONDS
    }
    return tuple(sorted(found))


def avoided_words(status: JobStatus, nodes: tuple[str, ...]) -> str:
    """What an event says of the nodes, with the failures on them."""
    failures = [role.last_failure for role in status.roles.values() if role.last_failure]
    told = [f"{f.node} ({f.process}: {f.reason[:200]})" for f in failures if f.node in nodes]
    hours = round(AVOID_SECONDS / 3600)
    return f"for {hours} h after their failures, new pods prefer other nodes than {', '.join(told)}"


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
