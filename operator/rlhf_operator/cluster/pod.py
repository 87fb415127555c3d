"""A role's pod: the commands and environment of the contract, in a pod that the `restricted` standard admits."""

import math
from typing import Any

from rlhf_api.pods import PodSettings, Volume, amount, combine
from rlhf_api.roles import HEALTH, LIVE_FAILURES, LIVE_SECONDS, LIVE_TIMEOUT_SECONDS, Role, RoleSpec
from rlhf_api.run import Process, RunConfig, command, environment

from .gangs import GANGS
from .merge import merge
from .names import ATTEMPT, INDEX, pod_name, role_labels, service_name
from .settings import Defaults

Body = dict[str, Any]

PORT = 8000
MASTER_PORT = 29500
WORKSPACE = "/workspace"
CONFIG_DIRECTORY = "/etc/rlhf"
START_CONFIG, RESUME_CONFIG = "start.json", "resume.json"
"""The two files of a job's ConfigMap: the same run, begun or gone on with."""
USER = 65532


def build_pod(
    config: RunConfig,
    role: Role,
    index: int,
    *,
    attempt: int,
    resume: bool,
    config_name: str,
    token_secret: str,
    defaults: Defaults,
) -> Body:
    """The pod's body, without namespace and owner; `attempt` is the trainer gang's, `token_secret` a Secret's name."""
    section, name = config.role(role), pod_name(config.job, role, index)
    pods = combine(config.spec.pods, section.pods)
    process = _process(config, role, index)
    gang = GANGS[config.spec.scheduling.gang]
    labels = {**role_labels(config.job, role), INDEX: str(index), ATTEMPT: str(attempt)}
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "hostname": name,
            "subdomain": service_name(config.job),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": role.row.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "role",
                    "image": pods.image or defaults.image,
                    **_pull(pods, defaults),
                    "command": command(config, process, torchrun=defaults.torchrun),
                    "workingDir": WORKSPACE,
                    "env": _environment(config, process, pods, token_secret, resume=resume),
                    "envFrom": [{"secretRef": {"name": secret}} for secret in pods.secrets],
                    "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
                    "resources": _resources(pods),
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": _mounts(config, pods),
                    **_probes(role, index, section),
                    **_lifecycle(role),
                }
            ],
            "volumes": _volumes(config, pods, config_name, defaults),
            **_placement(pods),
        },
    }
    merged: Body = merge(gang.join(body, config.job), pods.template)
    return merged


def _pull(pods: PodSettings, defaults: Defaults) -> Body:
    policy = pods.image_pull_policy or defaults.image_pull_policy
    return {"imagePullPolicy": policy} if policy else {}


def _process(config: RunConfig, role: Role, index: int) -> Process:
    """Pods find each other by their names in the headless service; the first trainer knows itself by its hostname,
    before the service has heard of it."""
    first = pod_name(config.job, Role.TRAINER, 0)
    master = first if (role, index) == (Role.TRAINER, 0) else f"{first}.{service_name(config.job)}"
    return Process(role, index, PORT, "0.0.0.0", f"{master}:{MASTER_PORT}")


def _environment(
    config: RunConfig, process: Process, pods: PodSettings, token_secret: str, *, resume: bool
) -> list[Body]:
    file = RESUME_CONFIG if resume and process.role is Role.TRAINER else START_CONFIG
    variables = environment(
        config,
        process,
        config_file=f"{CONFIG_DIRECTORY}/{file}",
        termination_log="/dev/termination-log",
    )
    fixed = {"HOME": "/tmp", "PYTHONUNBUFFERED": "1", "PYTHONPATH": WORKSPACE, **_threads(pods), **variables}
    del fixed["RLHF_HOST"]
    return [
        *({"name": name, "value": value} for name, value in fixed.items()),
        {"name": "RLHF_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {
            "name": "RLHF_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": token_secret, "key": "token"}},
        },
    ]


def _threads(pods: PodSettings) -> dict[str, str]:
    """OMP_NUM_THREADS: the pod's CPU limit or request; without either, torch takes all cores of the node."""
    cpus = pods.resources.limits.get("cpu") or pods.resources.requests.get("cpu")
    if cpus is None:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, math.floor(amount(cpus))))}


def _resources(pods: PodSettings) -> Body:
    requests, limits = dict(pods.resources.requests), dict(pods.resources.limits)
    if pods.gpu is not None:
        limits[pods.gpu.resource] = requests[pods.gpu.resource] = str(pods.gpu.count)
    return {"requests": requests, "limits": limits}


def _probes(role: Role, index: int, section: RoleSpec) -> Body:
    """Startup bounds the loading of a model, readiness says who serves, liveness finds who hangs. Of the trainer's
    pods only the first listens."""
    if role is Role.TRAINER and index > 0:
        return {}

    def probe(path: str, period: int, failures: int) -> Body:
        get = {"path": path, "port": "http"}
        times = {"periodSeconds": period, "timeoutSeconds": LIVE_TIMEOUT_SECONDS}
        return {"httpGet": get, **times, "failureThreshold": failures}

    probes = {
        "startupProbe": probe(HEALTH, 2, math.ceil(section.startup_timeout_seconds / 2)),
        "readinessProbe": probe(role.row.ready, 5, 2),
    }
    if role.row.live is not None:
        probes["livenessProbe"] = probe(role.row.live, LIVE_SECONDS, LIVE_FAILURES)
    return probes


def _lifecycle(role: Role) -> Body:
    if role.row.drain is None:
        return {}
    return {"lifecycle": {"preStop": {"httpGet": {"path": role.row.drain, "port": "http"}}}}


def _mounts(config: RunConfig, pods: PodSettings) -> list[Body]:
    workspace: Body = {"name": "workspace", "mountPath": WORKSPACE}
    if config.spec.workspace.sub_path is not None:
        workspace["subPath"] = config.spec.workspace.sub_path
    return [
        {"name": "config", "mountPath": CONFIG_DIRECTORY, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        workspace,
        *(
            {
                "name": volume.name,
                "mountPath": volume.mount_path,
                "readOnly": volume.read_only,
                **({"subPath": volume.sub_path} if volume.sub_path else {}),
            }
            for volume in pods.volumes
        ),
    ]


def _volumes(config: RunConfig, pods: PodSettings, config_name: str, defaults: Defaults) -> list[Body]:
    claim = config.spec.workspace.claim or defaults.workspace_claim
    workspace: Body = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
    return [
        {"name": "config", "configMap": {"name": config_name}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": pods.shared_memory}},
        {"name": "workspace", **workspace},
        *({"name": volume.name, **_source(volume)} for volume in pods.volumes),
    ]


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


def _placement(pods: PodSettings) -> Body:
    tolerations = [t.model_dump(by_alias=True, exclude_none=True) for t in pods.tolerations]
    found: Body = {
        "nodeSelector": dict(pods.node_selector),
        "tolerations": tolerations,
        "priorityClassName": pods.priority_class,
        "imagePullSecrets": [{"name": secret} for secret in pods.image_pull_secrets],
    }
    return {key: value for key, value in found.items() if value}
