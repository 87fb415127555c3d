"""Resource definitions of the schedulers and queues that jobs may use: the fields that their documentation gives."""

from typing import Any

INT, TEXT, BOOL = ({"type": kind} for kind in ("integer", "string", "boolean"))
OPEN = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
CONDITIONS = {"type": "array", "items": OPEN}


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
    group: str, version: str, kind: str, spec: dict[str, Any], required: list[str]
) -> dict[str, Any]:
    """A namespaced kind with a status of its own; what `spec` does not name, the server drops."""
    plural = f"{kind.lower()}s"
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {"type": "object", "properties": spec, "required": required},
            "status": {
                "type": "object",
                "properties": {
                    "conditions": CONDITIONS,
                    "phase": TEXT,
                    "admission": OPEN,
                    "admissionChecks": CONDITIONS,
                    "requeueState": OPEN,
                    "reclaimablePods": CONDITIONS,
                },
            },
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
_POD_SET = {
    "type": "object",
    "required": ["count", "template"],
    "properties": {
        "name": TEXT,
        "count": {"type": "integer", "minimum": 0},
        "minCount": INT,
        "template": {"type": "object", "properties": {"metadata": OPEN, "spec": OPEN}},
        "topologyRequest": OPEN,
    },
}
KUEUE = definition(
    "kueue.x-k8s.io",
    "v1beta2",
    "Workload",
    {
        "queueName": TEXT,
        "priorityClassRef": {
            "type": "object",
            "required": ["group", "kind", "name"],
            "properties": {
                "group": {"type": "string", "enum": ["kueue.x-k8s.io", "scheduling.k8s.io"]},
                "kind": {"type": "string", "enum": ["WorkloadPriorityClass", "PriorityClass"]},
                "name": TEXT,
            },
        },
        "priority": INT,
        "active": BOOL,
        "maximumExecutionTimeSeconds": INT,
        "podSets": {"type": "array", "minItems": 1, "maxItems": 8, "items": _POD_SET},
    },
    ["podSets"],
)
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
