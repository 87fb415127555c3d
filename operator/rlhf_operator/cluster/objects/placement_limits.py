"""Checks where a job's pods may run against an administrator's limits: nodes, taints, schedulers, priorities; pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_api.errors.problem import Problem, show

from ...job.baseline import as_list, as_object
from ...job.names import PRIORITY
from ..config.limits import ANY, Limits, listed, names, refusal

Body = Mapping[str, Any]

NODE_KEYS = ("kubernetes.io/hostname", "metadata.name")
"""Label and field that single nodes have."""
ROLE_PREFIX = "node-role.kubernetes.io/"
"""Of labels of control planes, among others."""
GONE = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of nodes that fail, which every pod tolerates for some time."""
_DEFAULT = "default-scheduler"


def check_placement(limits: Limits, pod: str, body: Body, scheduler: str | None) -> Iterator[Problem]:
    """`pod`: words for it; `scheduler`: that of the job's gang, which is allowed."""
    where, spec = f"{pod} spec", body["spec"]
    if priority := spec.get("priorityClassName"):
        yield from listed(f"{where}.priorityClassName", priority, limits.priority_classes)
    if priority := as_object(body["metadata"].get("labels")).get(PRIORITY):
        place = f"{pod} metadata.labels[{show(PRIORITY)}]"
        yield from listed(place, priority, limits.priority_classes, "priorityClasses")
    if (named := spec.get("schedulerName")) and named not in (_DEFAULT, scheduler):
        yield from listed(f"{where}.schedulerName", named, limits.schedulers, "schedulers")
    if runtime := spec.get("runtimeClassName"):
        yield from listed(f"{where}.runtimeClassName", runtime, limits.runtime_classes, "runtimeClasses")
    for toleration in map(as_object, as_list(spec.get("tolerations"))):
        key = toleration.get("key") or ""
        if key not in GONE and not {ANY, key} & set(limits.tolerations):
            rule = f"tolerations may have the keys {names(limits.tolerations)}"
            yield refusal(f"{where}.tolerations", key or "all keys", rule)
    for place, key in _selected(spec):
        if not limits.name_nodes and (key in NODE_KEYS or key.startswith(ROLE_PREFIX)):
            yield refusal(f"{where}.{place}", key, "nameNodes is false")


def _selected(spec: Body) -> Iterator[tuple[str, str]]:
    """Places and keys of all labels and fields by which the pod selects nodes."""
    for key in as_object(spec.get("nodeSelector")):
        yield "nodeSelector", str(key)
    affinity = as_object(as_object(spec.get("affinity")).get("nodeAffinity"))
    required = as_object(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    preferred = as_list(affinity.get("preferredDuringSchedulingIgnoredDuringExecution"))
    terms = [
        *as_list(required.get("nodeSelectorTerms")),
        *(as_object(p).get("preference") for p in preferred),
    ]
    for term in map(as_object, terms):
        for part in (*as_list(term.get("matchExpressions")), *as_list(term.get("matchFields"))):
            yield "affinity.nodeAffinity", str(as_object(part).get("key"))
