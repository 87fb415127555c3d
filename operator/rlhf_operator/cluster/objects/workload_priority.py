"""Priority of a job's Workload, from the class that Kueue's own integrations would take it from; pure."""

from collections.abc import Mapping
from typing import Any

from rlhf_api.contract.run import roles_of

from ...job.snapshot import Job
from .pinned import Pinned
from .pod import NewPod, build_pod


def priority_class(job: Job, pinned: Pinned) -> tuple[str, str] | None:
    """Kind and name of the class: the WorkloadPriorityClass of the job's label, else the PriorityClass of the first
    role whose pods have one."""
    if job.priority:
        return "WorkloadPriorityClass", job.priority
    pods = (build_pod(pinned, NewPod(role, 0, 1, resume=False), "") for role in roles_of(pinned.config.spec))
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
