"""Our chart on a cluster of the tests, and a workspace for its jobs."""

import json
from pathlib import Path
from typing import Any

from tests.cluster import images
from tests.support.kubernetes.helm import CHART, helm
from tests.support.kubernetes.kube import get, kubectl
from tests.support.kubernetes.operator import Jobs

SYSTEM, CLAIM = "rlhf-system", "rlhf-workspace"
JOBS = "team"
"""The namespace of the end-to-end tests' jobs."""
MONITORING, PROMETHEUS = "team=monitoring", "prometheus"
"""The label of the namespace from which pods with `app: PROMETHEUS` may read metrics."""


PAGE, READER = "app.kubernetes.io/component=ui", "reader"
"""The label of the page's pod, and the app of the pods in that namespace that may ask it."""


def install(kubeconfig: Path) -> None:
    """Returns when the operator is ready; its jobs have our images and the workspace. Network policies admit as little
    as the chart can say."""
    label, value = MONITORING.split("=")
    peer = {
        "namespaceSelector": {"matchLabels": {label: value}},
        "podSelector": {"matchLabels": {"app": PROMETHEUS}},
    }
    readers = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": JOBS}},
        "podSelector": {"matchLabels": {"app": READER}},
    }
    page = {"enabled": True, "from": [readers], "storePorts": [8333]}
    network = {"restrictEgress": True, "metricsFrom": [peer]}
    helm(
        *("install", "rlhf", str(CHART), "-n", SYSTEM, "--create-namespace", "--wait", "--timeout", "100s"),
        *("--set-json", f"networkPolicy={json.dumps(network)}"),
        *("--set-json", f"ui={json.dumps(page)}"),
        *("--set-json", f"jobs.metricsFrom={json.dumps([peer])}"),
        *("--set", "image.repository=localhost/rlhf-operator", "--set", "image.tag=dev"),
        *("--set", f"jobs.trainerImage={images.TRAINER}", "--set", f"jobs.workspaceClaim={CLAIM}"),
        kubeconfig=kubeconfig,
    )


def uninstall(kubeconfig: Path, namespace: str) -> None:
    """All of it, with the jobs and their namespace."""
    kubectl(kubeconfig, "delete", "rlhfjobs", "--all", "-n", namespace)
    helm("uninstall", "rlhf", "-n", SYSTEM, "--wait", kubeconfig=kubeconfig)
    kubectl(kubeconfig, "delete", "namespace", namespace, SYSTEM, timeout=180)
    kubectl(kubeconfig, "delete", "pv", CLAIM, "--ignore-not-found")
    kubectl(kubeconfig, "delete", "crd", "--selector=app.kubernetes.io/instance=rlhf")


def volume(directory: Path, name: str = CLAIM) -> list[dict[str, Any]]:
    """A workspace that all pods of this machine can mount, and a claim of it."""
    size = {"storage": "10Gi"}
    common = {"accessModes": ["ReadWriteMany", "ReadWriteOnce"], "storageClassName": ""}
    spec = {**common, "capacity": size, "hostPath": {"path": str(directory)}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name},
            "spec": {**common, "resources": {"requests": size}, "volumeName": name},
        },
    ]


def workspace(jobs: Jobs) -> Path:
    """The directory of this machine that all pods mount."""
    return Path(get(jobs.kubeconfig, "pv", CLAIM)["spec"]["hostPath"]["path"])
