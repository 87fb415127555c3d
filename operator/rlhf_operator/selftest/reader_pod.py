"""Builds a pod that runs a command with a trainer pod's image, volumes, credentials and user; pure."""

from typing import Any

from rlhf_api.sections.pods import amount

Body = dict[str, Any]

CONTAINER = "role"
_KEPT = (
    *("securityContext", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"),
    *("imagePullSecrets", "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName"),
)
_KEPT_OF_CONTAINER = ("image", "imagePullPolicy", "workingDir", "envFrom", "securityContext")
_CONFIG = "config"
"""The volume of the job's configuration, left out because it is deleted before the job's files."""
_SECONDS = 300


def reader_pod(trainer: Body, name: str, command: list[str]) -> Body:
    """Derived from a trainer's pod as stored. It has no label of the job, so that the operator and the job's network
    policies ignore it, and requests no GPU."""
    spec = trainer["spec"]
    role = next(container for container in spec["containers"] if container["name"] == CONTAINER)
    container = {
        **{key: role[key] for key in _KEPT_OF_CONTAINER if key in role},
        "name": CONTAINER,
        "command": command,
        "env": [each for each in role.get("env", ()) if "valueFrom" not in each],
        "resources": _resources(role.get("resources", {})),
        "volumeMounts": [each for each in role["volumeMounts"] if each["name"] != _CONFIG],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": trainer["metadata"]["namespace"]},
        "spec": {
            **{key: spec[key] for key in _KEPT if key in spec},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "activeDeadlineSeconds": _SECONDS,
            "containers": [container],
            "volumes": [each for each in spec["volumes"] if each["name"] != _CONFIG],
        },
    }


def keeps_files(trainer: Body) -> bool:
    """True if the job's workspace outlives its pods."""
    workspace = next(each for each in trainer["spec"]["volumes"] if each["name"] == "workspace")
    return "emptyDir" not in workspace


def _resources(own: Body) -> Body:
    """CPU and memory limits, with small requests; no devices."""
    most = {"cpu": "1", "memory": "4Gi"}
    requests = {
        name: min(most[name], quantity, key=amount)
        for name, quantity in own.get("requests", {}).items()
        if name in most
    }
    limits = {name: quantity for name, quantity in own.get("limits", {}).items() if name in most}
    return {"requests": requests, "limits": limits}
