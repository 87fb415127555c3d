"""An admission by Kueue, put on the pods: node labels and tolerations of the flavors that it assigns to a role, the
`podSetUpdates` of admission checks, such as a node pool that was provisioned for the job, and the topology domain of
each pod; pure.

Kueue's own controller puts pods into their domains after they were made, behind a scheduling gate. Here each pod is
made for its domain, by its index: one that is replaced comes back to where it was, or to the domain that Kueue has
assigned since.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_api.roles import Role

from .names import INDEX, RANK

Body = dict[str, Any]


REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED = "kueue.x-k8s.io/podset-unconstrained-topology"
"""Annotations of pods by which users ask for topology-aware scheduling, as for a Job."""
TOPOLOGY_AWARE = "kueue.x-k8s.io/tas"
"""Label of pods whose place Kueue has counted already."""


def topology_request(annotations: Mapping[str, str], groups: int | None = None) -> Body | None:
    """A pod set's `topologyRequest` (PodSetTopologyRequest of v1beta1); None where its pods ask for none. `groups`: its
    generators, where each has several pods."""
    order: Body = {"podIndexLabel": INDEX}
    if groups is not None:
        order = {"podIndexLabel": RANK, "subGroupIndexLabel": INDEX, "subGroupCount": groups}
    if (level := annotations.get(REQUIRED)) is not None:
        return {"required": level, **order}
    if (level := annotations.get(PREFERRED)) is not None:
        return {"preferred": level, **order}
    if annotations.get(UNCONSTRAINED, "").lower() == "true":
        return {"unconstrained": True, **order}
    return None


def flavors(workload: Mapping[str, Any]) -> set[str]:
    """Names of the ResourceFlavors that the admission assigns."""
    return {name for assigned in _assignments(workload) for name in (assigned.get("flavors") or {}).values()}


def placed(
    pod: Body,
    role: Role,
    workload: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]],
    size: int = 1,
) -> Body:
    """The pod where its role was admitted. `known`: ResourceFlavors by name; `size`: pods of one replica. What the
    admission says of a node label wins over the pod's own; of labels and annotations the pod's own win, by which the
    operator finds it again."""
    meta, spec = pod["metadata"], pod["spec"]
    index, rank = (int(meta["labels"].get(label, 0)) for label in (INDEX, RANK))
    updates = [*_updates(role, workload, known), *_domain(role, index * size + rank, workload)]
    selector, tolerations = dict(spec.get("nodeSelector") or {}), list(spec.get("tolerations") or ())
    labels, annotations = Body(), Body()
    for update in updates:
        selector |= update.get("nodeSelector") or {}
        tolerations += [each for each in update.get("tolerations") or () if each not in tolerations]
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    found = {"nodeSelector": selector, "tolerations": tolerations}
    named = {
        "labels": labels | meta.get("labels", {}),
        "annotations": annotations | meta.get("annotations", {}),
    }
    return {
        **pod,
        "metadata": {**meta, **{key: value for key, value in named.items() if value}},
        "spec": {**spec, **{key: value for key, value in found.items() if value}},
    }


def _assignments(workload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    admission = workload.get("status", {}).get("admission") or {}
    return list(admission.get("podSetAssignments") or ())


def _updates(
    role: Role, workload: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for assigned in _assignments(workload):
        if assigned["name"] == role.value:
            for name in sorted(set((assigned.get("flavors") or {}).values()) & known.keys()):
                spec = known[name].get("spec") or {}
                yield {"nodeSelector": spec.get("nodeLabels"), "tolerations": spec.get("tolerations")}
    for check in workload.get("status", {}).get("admissionChecks") or ():
        yield from (each for each in check.get("podSetUpdates") or () if each["name"] == role.value)


def _domain(role: Role, place: int, workload: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The topology domain of the pod with this place: the domains take as many pods each as Kueue counted, in order."""
    for assigned in _assignments(workload):
        topology = assigned.get("topologyAssignment")
        if assigned["name"] != role.value or not topology:
            continue
        for domain in topology["domains"]:
            if place < domain["count"]:
                selector = dict(zip(topology["levels"], domain["values"], strict=True))
                yield {"nodeSelector": selector, "labels": {TOPOLOGY_AWARE: "true"}}
                return
            place -= domain["count"]
