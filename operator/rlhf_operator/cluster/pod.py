"""A role's pod: the commands and environment of the contract, in a pod that the `restricted` standard admits."""

import math
from typing import Any

from rlhf_api.pods import PodSettings, Volume, amount, combine
from rlhf_api.roles import HEALTH, LIVE_FAILURES, LIVE_SECONDS, LIVE_TIMEOUT_SECONDS, Role, RoleSpec
from rlhf_api.run import Process, RunConfig, command, environment

from .gangs import GANGS
from .merge import merge
from .names import ATTEMPT, INDEX, pod_name, role_labels, service_name, token_name
from .ports import MASTER_PORT, PORT, http_port, master_port
from .settings import Defaults

Body = dict[str, Any]

WORKSPACE = "/workspace"
CONFIG_DIRECTORY = "/etc/rlhf"
START_CONFIG, RESUME_CONFIG = "start.json", "resume.json"
"""The two files of a job's ConfigMap: the same run, begun or gone on with."""
USER = 65532
KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of trainers: a node that could be saved is worth less than the steps since the last checkpoint."""
MODEL_CACHE = "models"
"""The init container that fills the model cache."""


def build_pod(
    config: RunConfig,
    role: Role,
    index: int,
    *,
    attempt: int,
    resume: bool,
    config_name: str,
    uid: str,
    defaults: Defaults,
) -> Body:
    """The pod's body, without namespace and owner; `attempt` is the trainer gang's, `uid` the job's."""
    section, name = config.role(role), pod_name(config.job, role, index)
    pods = combine(config.spec.pods, section.pods)
    on_node = shares_node_network(pods)
    process = _node_network(config, role, index, uid) if on_node else _own_network(config, role, index)
    gang = GANGS[config.spec.scheduling.gang]
    container = {
        "name": "role",
        "image": pods.image or defaults.image,
        **_pull(pods, defaults),
        "workingDir": WORKSPACE,
        "env": _environment(config, process, pods, token_name(config.job, uid), resume=resume),
        "envFrom": [{"secretRef": {"name": secret}} for secret in pods.secrets],
        "resources": _resources(pods),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": _mounts(config, pods),
    }
    labels = {**role_labels(config.job, role), INDEX: str(index), ATTEMPT: str(attempt)}
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            **({"annotations": KEEP} if role is Role.TRAINER else {}),
        },
        "spec": {
            "hostname": name,
            "subdomain": service_name(config.job),
            **({"dnsPolicy": "ClusterFirstWithHostNet"} if on_node else {}),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": role.row.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                # Else every start changes the owner of every file of a volume, for hours where it is large.
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"initContainers": [_model_cache(container, pods)]} if pods.model_cache else {}),
            "containers": [
                {
                    **container,
                    "command": command(config, process, torchrun=defaults.torchrun),
                    "ports": _ports(process, on_node),
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


def _model_cache(role: Body, pods: PodSettings) -> Body:
    """The init container that puts the role's models into the cache; it has what the role's container has but GPUs."""
    hub = {"HF_HUB_CACHE": pods.model_cache, "HF_HUB_OFFLINE": "0"}
    env = [each for each in role["env"] if each["name"] not in hub]
    gpu = {pods.gpu.resource} if pods.gpu is not None else set()
    resources = {
        kind: {name: amount for name, amount in found.items() if name not in gpu}
        for kind, found in role["resources"].items()
    }
    return {
        **role,
        "name": MODEL_CACHE,
        "command": ["python3", "-m", "rlhf_trainer.model_cache"],
        "env": [*env, *({"name": name, "value": value} for name, value in hub.items())],
        "resources": resources,
    }


def _pull(pods: PodSettings, defaults: Defaults) -> Body:
    policy = pods.image_pull_policy or defaults.image_pull_policy
    return {"imagePullPolicy": policy} if policy else {}


def shares_node_network(pods: PodSettings) -> bool:
    """The template asks for `hostNetwork`."""
    spec = pods.template.get("spec")
    return isinstance(spec, dict) and spec.get("hostNetwork") is True


def _own_network(config: RunConfig, role: Role, index: int) -> Process:
    """Pods find each other by their names in the headless service; the first trainer knows itself by its hostname,
    before the service has heard of it."""
    first = pod_name(config.job, Role.TRAINER, 0)
    master = first if (role, index) == (Role.TRAINER, 0) else f"{first}.{service_name(config.job)}"
    return Process(role, index, PORT, "0.0.0.0", f"{master}:{MASTER_PORT}")


def _node_network(config: RunConfig, role: Role, index: int, uid: str) -> Process:
    """The hostname is the node's there, and the first trainer knows itself by its address, which the kubelet puts into
    its command."""
    first = f"{pod_name(config.job, Role.TRAINER, 0)}.{service_name(config.job)}"
    master = "$(RLHF_HOST)" if (role, index) == (Role.TRAINER, 0) else first
    return Process(role, index, http_port(uid, role, index), "0.0.0.0", f"{master}:{master_port(uid)}")


def _ports(process: Process, on_node: bool) -> list[Body]:
    named = {"http": process.port}
    if on_node and (process.role, process.index) == (Role.TRAINER, 0):
        named["rendezvous"] = int(process.master.rpartition(":")[2])
    return [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in named.items()]


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
    # What was put into the cache is taken as it is: the same revision for all roles, and at every restart.
    hub = {"HF_HUB_CACHE": pods.model_cache, "HF_HUB_OFFLINE": "1"} if pods.model_cache else {}
    fixed = {
        "HOME": "/tmp",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": WORKSPACE,
        **hub,
        **_threads(pods),
        **variables,
    }
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
