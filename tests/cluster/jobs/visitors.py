"""Pods beside those of jobs: what they print, and what they reach."""

import json
from collections.abc import Iterable
from pathlib import Path

from tests.cluster import images
from tests.support.kubernetes.kube import eventually, get, kubectl

READY_S = 120
REACHED, REJECTED = "reached", "No route to host"
_TRY = """
import json, socket, sys
for address, port in json.loads(sys.argv[1]):
    try:
        socket.create_connection((address, port), timeout=20).close()
        print("reached")
    except OSError as error:
        print(error.strerror or error)
"""


def pod(name: str, image: str, *command: str, **spec: object) -> dict:
    """One that the restricted Pod Security Standard accepts, with a root filesystem that nobody can write to."""
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "envFrom": [{"secretRef": {"name": "seaweedfs", "optional": True}}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
            **spec,
        },
    }


def output(kubeconfig: Path, namespace: str, manifest: dict) -> str:
    """Runs a pod to its end, which must be a success; returns its output."""
    kubectl(kubeconfig, "apply", "-n", namespace, "-f", "-", input=json.dumps(manifest))
    where = (manifest["metadata"]["name"], "-n", namespace)

    def phase() -> str:
        now = get(kubeconfig, "pod", *where)["status"]["phase"]
        return now if now in ("Succeeded", "Failed") else ""

    ended = eventually(phase, f"the end of pod {where[0]}", READY_S)
    log = kubectl(kubeconfig, "logs", *where)
    assert ended == "Succeeded", log
    return log


def visit(kubeconfig: Path, namespace: str, name: str, **spec: object) -> None:
    """Starts a pod that waits, with the label `app: NAME`; returns when it runs."""
    waiting = pod(name, images.OPERATOR, "python3", "-c", "import time; time.sleep(3600)", **spec)
    kubectl(kubeconfig, "apply", "-n", namespace, "-f", "-", input=json.dumps(waiting))
    ready = ("--for=condition=Ready", f"--timeout={READY_S}s")
    kubectl(kubeconfig, "wait", f"pod/{name}", "-n", namespace, *ready, timeout=READY_S + 10)


def tried(kubeconfig: Path, namespace: str, name: str, ends: Iterable[tuple[str, int]]) -> list[str]:
    """Outcome of a connection from that pod to each address and port: REACHED, REJECTED or another error."""
    inside = ("exec", name, "-n", namespace, "--", "python3", "-c", _TRY, json.dumps([*ends]))
    return kubectl(kubeconfig, *inside).splitlines()
