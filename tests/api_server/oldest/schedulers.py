"""Resource definitions of the schedulers and queues that jobs may use: the fields that their documentation gives."""

from typing import Any

INT, TEXT, BOOL = ({"type": kind} for kind in ("integer", "string", "boolean"))
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CONDITIONS = {"type": "array", "items": OPEN}


def text(longest: int, pattern: str = "") -> dict[str, Any]:
    return {"type": "string", "maxLength": longest, **({"pattern": pattern} if pattern else {})}


def record(required: list[str], /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def keyed(item: dict[str, Any], key: str, longest: int = 10) -> dict[str, Any]:
    """A list whose items server-side apply tells apart by this key."""
    list_fields = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    return {"type": "array", "items": item, "maxItems": longest, **list_fields}


def of_cluster(kind: str, plural: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A kind of Kueue's that is in no namespace."""
    schema = {"type": "object", "properties": properties}
    version = {"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kueue.x-k8s.io"},
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


def definition(
    group: str,
    version: str,
    kind: str,
    spec: dict[str, Any],
    required: list[str],
    status: dict[str, Any] = OPEN,
) -> dict[str, Any]:
    """A namespaced kind with a status of its own; what `spec` does not name, the server drops."""
    plural = f"{kind.lower()}s"
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {"type": "object", "properties": spec, "required": required},
            "status": status,
        },
    }
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


VOLCANO = definition(
    "scheduling.volcano.sh",
    "v1beta1",
    "PodGroup",
    {"minMember": INT, "queue": TEXT, "priorityClassName": TEXT, "minResources": OPEN, "minTaskMember": OPEN},
    [],
)
COSCHEDULING = definition(
    "scheduling.x-k8s.io",
    "v1alpha1",
    "PodGroup",
    {"minMember": INT, "minResources": OPEN, "scheduleTimeoutSeconds": INT},
    [],
)
_EXACTLY = record(
    ["deviceClassName"],
    deviceClassName=TEXT,
    allocationMode={"type": "string", "enum": ["ExactCount", "All"]},
    count=INT,
)
_REQUESTS = {"type": "array", "items": record(["name"], name=TEXT, exactly=_EXACTLY)}
CLAIM_TEMPLATE = definition(
    "resource.k8s.io",
    "v1",
    "ResourceClaimTemplate",
    {"spec": record([], devices=record([], requests=_REQUESTS))},
    ["spec"],
)
"""Of Kubernetes 1.34 and newer, by its published types; the spec of a real one cannot be changed."""
CLAIM_TEMPLATE["metadata"]["annotations"] = {"api-approved.kubernetes.io": "https://example.org/1"}
_LABEL = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
_COUNT = {"type": "integer", "minimum": 0}
_POD_SET = record(
    ["name", "count", "template"],
    name=text(63, _LABEL),
    count=_COUNT,
    minCount=INT,
    template=record([], metadata=record([], labels=OPEN, annotations=OPEN), spec=OPEN),
    topologyRequest=record(
        [],
        required=text(63),
        preferred=text(63),
        unconstrained=BOOL,
        podIndexLabel=text(317),
        subGroupIndexLabel=text(317),
        subGroupCount=INT,
        podSetGroupName=text(256),
        podSetSliceRequiredTopology=text(63),
        podSetSliceSize=INT,
    ),
)
_CONDITION = record(
    ["lastTransitionTime", "message", "reason", "status", "type"],
    lastTransitionTime={"type": "string", "format": "date-time"},
    message=text(32768),
    observedGeneration=_COUNT,
    reason={**text(1024, "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"), "minLength": 1},
    status={**text(7), "enum": ["True", "False", "Unknown"]},
    type=text(316),
)
_ROOTS = record(["roots"], prefix=text(63), suffix=text(63), roots={"type": "array", "items": text(63)})
_SLICE = record(
    ["domainCount", "valuesPerLevel", "podCounts"],
    domainCount={"type": "integer", "minimum": 1},
    valuesPerLevel={"type": "array", "items": record([], universal=text(63), individual=_ROOTS)},
    podCounts=record([], universal=INT, individual={"type": "array", "items": INT}),
)
_TOPOLOGY = record(
    ["levels", "slices"],
    levels={"type": "array", "items": text(317), "minItems": 1, "maxItems": 16},
    slices={"type": "array", "items": _SLICE},
)
_ASSIGNED = record(
    ["name"],
    name=text(63, _LABEL),
    flavors=OPEN,
    resourceUsage=OPEN,
    count=_COUNT,
    topologyAssignment=_TOPOLOGY,
    delayedTopologyRequest=text(7),
)
_WORKLOAD_STATUS = record(
    [],
    conditions=keyed(_CONDITION, "type", 16),
    admission=record([], clusterQueue=text(253, _NAME), podSetAssignments=keyed(_ASSIGNED, "name")),
    admissionChecks=CONDITIONS,
    requeueState=record([], count=_COUNT, requeueAt={"type": "string", "format": "date-time"}),
    reclaimablePods=keyed(record(["name", "count"], name=text(63, _LABEL), count=_COUNT), "name"),
)
KUEUE = definition(
    "kueue.x-k8s.io",
    "v1beta2",
    "Workload",
    {
        "queueName": text(253, _NAME),
        "priorityClassRef": record(
            ["group", "kind", "name"],
            group={"type": "string", "enum": ["kueue.x-k8s.io", "scheduling.k8s.io"]},
            kind={"type": "string", "enum": ["WorkloadPriorityClass", "PriorityClass"]},
            name={**text(253, _NAME), "minLength": 1},
        ),
        "priority": INT,
        "active": {**BOOL, "default": True},
        "maximumExecutionTimeSeconds": INT,
        "podSets": {**keyed(_POD_SET, "name", 8), "minItems": 1},
    },
    ["podSets"],
    _WORKLOAD_STATUS,
)
"""By the types that Kueue publishes; its rules are in tests/api_server/current/test_kueue.py."""
FLAVOR = of_cluster(
    "ResourceFlavor",
    "resourceflavors",
    {
        "spec": {
            "type": "object",
            "properties": {"nodeLabels": OPEN, "nodeTaints": CONDITIONS, "tolerations": CONDITIONS},
        }
    },
)
PRIORITY = of_cluster("WorkloadPriorityClass", "workloadpriorityclasses", {"value": INT, "description": TEXT})
ALL = (VOLCANO, COSCHEDULING, KUEUE, FLAVOR, PRIORITY)
