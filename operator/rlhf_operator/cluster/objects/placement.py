"""Applies a Kueue admission to the pods: node labels and tolerations of the flavors assigned to a role, the
`podSetUpdates` of admission checks, such as a node pool provisioned for the job, and each pod's topology domain; pure.

Kueue's own controller assigns domains to created pods behind a scheduling gate. Here each pod is created for its
domain, by index: a replacement returns to the same domain, or to the one that Kueue has assigned since.
"""

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

from ...job.names import INDEX, RANK
from .pod_sets import PodSet

Body = dict[str, Any]


REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED = "kueue.x-k8s.io/podset-unconstrained-topology"
SLICE_REQUIRED = "kueue.x-k8s.io/podset-slice-required-topology"
"""Pod annotations by which users request topology-aware scheduling, as for a Job."""
_TOPOLOGY = (REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_REQUIRED)
TOPOLOGY_AWARE = "kueue.x-k8s.io/tas"
"""Label of pods whose topology Kueue has accounted for already, until 0.16; later ones know them by their annotations
of `_TOPOLOGY`, and count the usage of others beside their Workload's."""
WORKLOAD = "kueue.x-k8s.io/workload"
"""Annotation by which Kueue finds the pods of a Workload, where a node fails."""
POD_SET = "kueue.x-k8s.io/podset"
"""Label with the pod's set in its Workload."""


def topology_request(annotations: Mapping[str, str], groups: int = 1, size: int = 1) -> Body | None:
    """A pod set's `topologyRequest` (PodSetTopologyRequest of v1beta2); None if its pods request none. `size`: pods of
    each of its replicas, a slice of Kueue's, which gets one domain of the level that slices require; `groups`: number
    of replicas."""
    level = _level(annotations)
    if (each := annotations.get(SLICE_REQUIRED)) is not None:
        level |= {"podSetSliceRequiredTopology": each, "podSetSliceSize": size}
    if not level:
        return None
    if size == 1:
        return {**level, "podIndexLabel": INDEX}
    return {**level, "podIndexLabel": RANK, "subGroupIndexLabel": INDEX, "subGroupCount": groups}


def _level(annotations: Mapping[str, str]) -> Body:
    """The level that the pod set as a whole requests."""
    if (level := annotations.get(REQUIRED)) is not None:
        return {"required": level}
    if (level := annotations.get(PREFERRED)) is not None:
        return {"preferred": level}
    return {"unconstrained": True} if annotations.get(UNCONSTRAINED, "").lower() == "true" else {}


def flavors(workload: Mapping[str, Any]) -> set[str]:
    """Names of the ResourceFlavors assigned by the admission."""
    return {name for assigned in _assignments(workload) for name in (assigned.get("flavors") or {}).values()}


def placed(
    pod: Body,
    own: PodSet,
    workload: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]],
    size: int = 1,
) -> Body:
    """The pod with the admission of its set applied. `known`: ResourceFlavors by name; `size`: pods per replica. The
    admission's node labels override the pod's own; the pod's own labels and annotations, by which the operator finds
    it, override the admission's."""
    meta, spec = pod["metadata"], pod["spec"]
    index, rank = (int(meta["labels"].get(label, 0)) for label in (INDEX, RANK))
    topology_requested = any(each in meta.get("annotations", {}) for each in _TOPOLOGY)
    updates = [
        *_updates(own.name, workload, known),
        *_domain(
            own.name, (index - own.first) * size + rank, workload, topology_requested=topology_requested
        ),
    ]
    selector, tolerations = dict(spec.get("nodeSelector") or {}), list(spec.get("tolerations") or ())
    labels, annotations = Body(), Body()
    for update in updates:
        selector |= update.get("nodeSelector") or {}
        tolerations += [each for each in update.get("tolerations") or () if each not in tolerations]
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    placement = {"nodeSelector": selector, "tolerations": tolerations}
    named = {
        "labels": labels | meta.get("labels", {}),
        "annotations": annotations | meta.get("annotations", {}),
    }
    return {
        **pod,
        "metadata": {**meta, **{key: value for key, value in named.items() if value}},
        "spec": {**spec, **{key: value for key, value in placement.items() if value}},
    }


def _assignments(workload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    admission = workload.get("status", {}).get("admission") or {}
    return list(admission.get("podSetAssignments") or ())


def _updates(
    name: str, workload: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    for assigned in _assignments(workload):
        if assigned["name"] == name:
            yield {"labels": {POD_SET: name}, "annotations": {WORKLOAD: workload["metadata"]["name"]}}
            for flavor in sorted(set((assigned.get("flavors") or {}).values()) & known.keys()):
                spec = known[flavor].get("spec") or {}
                yield {"nodeSelector": spec.get("nodeLabels"), "tolerations": spec.get("tolerations")}
    for check in workload.get("status", {}).get("admissionChecks") or ():
        yield from (each for each in check.get("podSetUpdates") or () if each["name"] == name)


def _domain(
    name: str, place: int, workload: Mapping[str, Any], *, topology_requested: bool
) -> Iterator[Mapping[str, Any]]:
    """Topology domain of the pod with this place: the domains take as many pods each as Kueue counted, in order. A pod
    that has not `topology_requested` for a topology is marked as Kueue marks those of its own jobs."""
    for assigned in _assignments(workload):
        topology = assigned.get("topologyAssignment")
        if assigned["name"] != name or not topology:
            continue
        for count, values in _domains(topology):
            if place < count:
                selector = dict(zip(topology["levels"], values, strict=True))
                annotations = {} if topology_requested else {UNCONSTRAINED: "true"}
                yield {
                    "nodeSelector": selector,
                    "labels": {TOPOLOGY_AWARE: "true"},
                    "annotations": annotations,
                }
                return
            place -= count


def _domains(topology: Mapping[str, Any]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Pods and label values of each domain, unpacked from the slices of a TopologyAssignment: what is the same for all
    domains of a slice, or begins or ends alike, stands there once."""
    for part in topology["slices"]:
        domains, counts = part["domainCount"], part["podCounts"]
        yield from zip(
            counts.get("individual") or repeat(counts["universal"], domains),
            zip(*(_values(each, domains) for each in part["valuesPerLevel"]), strict=True),
            strict=True,
        )


def _values(level: Mapping[str, Any], domains: int) -> Iterator[str]:
    if "universal" in level:
        return repeat(level["universal"], domains)
    own = level["individual"]
    return (f"{own.get('prefix', '')}{root}{own.get('suffix', '')}" for root in own["roots"])
