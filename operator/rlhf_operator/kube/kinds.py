"""Kinds of objects that the operator uses, and their paths on an API server."""

from collections.abc import Mapping
from typing import Any

FIELD_MANAGER = "rlhf-operator"
"""Owner of the fields that the operator writes, and its User-Agent."""
KUEUE = "kueue.x-k8s.io/v1beta2"
"""Served by Kueue 0.15 and later; 0.20 serves no earlier version."""
CLAIMS = "resource.k8s.io/v1"
"""Of dynamic resource allocation: served by Kubernetes 1.34 and later."""
KINDS = {
    "ClusterRLHFRuntime": ("rlhf.dev/v1alpha1", "clusterrlhfruntimes"),
    "ConfigMap": ("v1", "configmaps"),
    "Event": ("v1", "events"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": ("v1", "persistentvolumeclaims"),
    "Pod": ("v1", "pods"),
    "PodGroup.scheduling.k8s.io": ("scheduling.k8s.io/v1beta1", "podgroups"),
    "PodGroup.scheduling.volcano.sh": ("scheduling.volcano.sh/v1beta1", "podgroups"),
    "PodGroup.scheduling.x-k8s.io": ("scheduling.x-k8s.io/v1alpha1", "podgroups"),
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses"),
    "RLHFJob": ("rlhf.dev/v1alpha1", "rlhfjobs"),
    "ResourceClaim": (CLAIMS, "resourceclaims"),
    "ResourceClaimTemplate": (CLAIMS, "resourceclaimtemplates"),
    "ResourceFlavor": (KUEUE, "resourceflavors"),
    "RLHFRuntime": ("rlhf.dev/v1alpha1", "rlhfruntimes"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "SubjectAccessReview": ("authorization.k8s.io/v1", "subjectaccessreviews"),
    "TokenReview": ("authentication.k8s.io/v1", "tokenreviews"),
    "Workload": (KUEUE, "workloads"),
    "WorkloadPriorityClass": (KUEUE, "workloadpriorityclasses"),
}
"""Kinds that the operator uses: apiVersion and plural name; with the group in the key if two share a kind."""


def group_path(version: str) -> str:
    """Path of an API group by its apiVersion."""
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def object_path(kind: str, namespace: str | None, name: str) -> str:
    """Path of an object; without a name, of all objects of the kind; without a namespace, in all namespaces."""
    version, plural = KINDS[kind]
    within = f"namespaces/{namespace}/" if namespace else ""
    return f"{group_path(version)}/{within}{plural}" + (f"/{name}" if name else "")


def body_path(body: Mapping[str, Any], tail: str) -> str:
    """Path of a body's kind in its namespace, followed by `tail`."""
    return object_path(kind_of(body), body["metadata"]["namespace"], tail)


def kind_of(body: Mapping[str, Any]) -> str:
    """The body's key in KINDS."""
    kind = str(body["kind"])
    return kind if kind in KINDS else f"{kind}.{body['apiVersion'].partition('/')[0]}"
