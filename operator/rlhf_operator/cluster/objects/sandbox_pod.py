"""A sandbox's pod, as far as it differs from those of other roles: an image of the user's, in which our server is the
first process, and nothing of the job but its own token; pure."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_api.contract import proof, sandbox_server
from rlhf_api.contract.run import Process, RunConfig
from rlhf_api.roles import Role
from rlhf_api.sections.pods import PodSettings

from ...job.names import common_labels, sandbox_files_name
from .pod_process import own_address, token_of
from .pod_volumes import SHARED_MEMORY, own_mounts, own_volumes

Body = dict[str, Any]

FOLDER = "/rlhf"
"""Where the pod has the server, read-only."""
_FILES = {
    "server": ("__main__.py", sandbox_server.__file__),
    "proof": ("rlhf_api/contract/proof.py", proof.__file__),
}
"""Paths in that folder, and our own files, by their keys in the ConfigMap."""
_LIMITS = {"memory": "2Gi", "ephemeral-storage": "4Gi"}
_FIRST_USER, _JOBS = 1_000_000, 1_000_000


def sandbox_container(
    container: Mapping[str, Any], config: RunConfig, process: Process, pods: PodSettings, uid: str
) -> Body:
    """The role's container with the user's image as it is: its work directory, variables and files; `uid`: the
    job's."""
    variables = {"RLHF_PORT": str(process.port), "RLHF_TERMINATION_LOG": "/dev/termination-log"}
    own = {name: value for name, value in container.items() if name != "workingDir"}
    return {
        **own,
        "command": ["python3", "-I", "-S", FOLDER],
        "env": [
            own_address(),
            *({"name": name, "value": value} for name, value in variables.items()),
            token_of(config, process.role, uid),
        ],
        "resources": _with_limits(container["resources"]),
        "securityContext": {**container["securityContext"], "readOnlyRootFilesystem": False},
        "volumeMounts": [
            {"name": "server", "mountPath": FOLDER, "readOnly": True},
            {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},
            *own_mounts(pods),
        ],
    }


def sandbox_volumes(config: RunConfig, pods: PodSettings, uid: str) -> list[Body]:
    """The volumes of its mounts."""
    items = [{"key": key, "path": path} for key, (path, _) in _FILES.items()]
    files = {"name": sandbox_files_name(config.job, uid), "items": items}
    return [{"name": "server", "configMap": files}, *own_volumes(pods)]


def sandbox_files(job: str, uid: str) -> Body:
    """The ConfigMap with the server."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": sandbox_files_name(job, uid), "labels": common_labels(job)},
        "data": {key: Path(file).read_text() for key, (_, file) in _FILES.items()},
    }


def user_of(uid: str, role: Role, index: int) -> int | None:
    """A user of this sandbox alone: the kernel counts a user's processes over all pods of a node. None for other
    roles."""
    if role is not Role.SANDBOX:
        return None
    digest = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4])
    return _FIRST_USER + digest % _JOBS * 1000 + index


def _with_limits(resources: Mapping[str, Mapping[str, Any]]) -> Body:
    """With a limit of memory, and of what it writes, for which it requests nothing, unless the manifest says."""
    given = {name for amounts in ("requests", "limits") for name in resources.get(amounts, ())}
    limits = {name: amount for name, amount in _LIMITS.items() if name not in given}
    requests = {"ephemeral-storage": "0"} if "ephemeral-storage" in limits else {}
    return {
        **resources,
        "requests": {**requests, **resources.get("requests", {})},
        "limits": {**limits, **resources.get("limits", {})},
    }
