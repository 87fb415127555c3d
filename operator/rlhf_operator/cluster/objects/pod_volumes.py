"""Volumes of a role's pod, and their mount points."""

from typing import Any

from rlhf_api.contract.run import RunConfig
from rlhf_api.roles import Role
from rlhf_api.sections.pods import PodSettings, Volume
from rlhf_api.spec import Spec

from ..config.settings import Defaults

Body = dict[str, Any]

WORKSPACE = "/workspace"
CONFIG_DIRECTORY = "/etc/rlhf"
START_CONFIG, RESUME_CONFIG = "start.json", "resume.json"
"""Files of a job's ConfigMap: the run's configuration for a start and for a resume."""
SHARED_MEMORY = "shared-memory"
CARRIED = f"{CONFIG_DIRECTORY}/files"
"""Directory of the files that the job carries."""


def mounts(config: RunConfig, role: Role, pods: PodSettings) -> list[Body]:
    """Mounts of the role's container: the configuration, the work directory, which environments only read, and the
    manifest's volumes."""
    workspace: Body = {"name": "workspace", "mountPath": WORKSPACE}
    if role.row.work == "play":
        workspace["readOnly"] = True
    if config.spec.workspace.sub_path is not None:
        workspace["subPath"] = config.spec.workspace.sub_path
    return [
        {"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": SHARED_MEMORY, "mountPath": "/dev/shm"},
        workspace,
        *own_mounts(pods),
    ]


def own_mounts(pods: PodSettings) -> list[Body]:
    """Mounts of the manifest's volumes."""
    return [
        {
            "name": volume.name,
            "mountPath": volume.mount_path,
            "readOnly": volume.read_only,
            **({"subPath": volume.sub_path} if volume.sub_path else {}),
        }
        for volume in pods.volumes
    ]


def volumes(config: RunConfig, pods: PodSettings, config_name: str, defaults: Defaults) -> list[Body]:
    """The volumes of `mounts`."""
    claim = config.spec.workspace.claim or defaults.workspace_claim
    limit = {"sizeLimit": defaults.tmp_size_limit} if defaults.tmp_size_limit else {}
    workspace: Body = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    return [
        {"name": "config", "configMap": {"name": config_name, **_items(config.spec)}},
        {"name": "tmp", "emptyDir": limit},
        {"name": "workspace", **workspace},
        *own_volumes(pods),
    ]


def own_volumes(pods: PodSettings) -> list[Body]:
    """/dev/shm, and the manifest's volumes."""
    return [
        {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": pods.shared_memory}},
        *({"name": volume.name, **_source(volume)} for volume in pods.volumes),
    ]


def carried_keys(spec: Spec) -> dict[str, str]:
    """Keys of the ConfigMap with the files that the job carries, by their names, which may be paths."""
    return {name: f"file-{i}" for i, name in enumerate(sorted(spec.workspace.files))}


def _items(spec: Spec) -> Body:
    """Path at which each key of the ConfigMap is mounted; none for a job without files, whose keys are all names."""
    if not spec.workspace.files:
        return {}
    configs = {file: file for file in (START_CONFIG, RESUME_CONFIG)}
    items = {key: f"files/{name}" for name, key in carried_keys(spec).items()}
    return {"items": [{"key": key, "path": at} for key, at in {**configs, **items}.items()]}


def _source(volume: Volume) -> Body:
    if volume.claim is not None:
        return {"persistentVolumeClaim": {"claimName": volume.claim}}
    if volume.config_map is not None:
        return {"configMap": {"name": volume.config_map}}
    if volume.secret is not None:
        return {"secret": {"secretName": volume.secret}}
    if volume.host_path is not None:
        return {"hostPath": {"path": volume.host_path}}
    return {"emptyDir": {"sizeLimit": volume.empty}}
