"""Builds a role's pod: the contract's commands and environment, in a pod that the `restricted` standard admits."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from rlhf_api.contract.run import command, listens, pods_each
from rlhf_api.estimate.resources import host_memory
from rlhf_api.roles import HEALTH, LIVE_FAILURES, LIVE_SECONDS, LIVE_TIMEOUT_SECONDS, Role
from rlhf_api.sections.pods import Gpu, PodSettings, combine
from rlhf_api.sections.roles import RoleSpec

from ...job.baseline import as_object
from ...job.names import (
    ATTEMPT,
    GPU_CLAIM,
    INDEX,
    RANK,
    claim_template_name,
    pod_name,
    role_labels,
    service_name,
)
from ..config.settings import Defaults
from .gangs import GANGS
from .merge import merge
from .node_avoidance import prefer_others
from .pinned import Pinned
from .pod_process import environment_of, literal, ports, process_of, shares_node_network
from .pod_volumes import WORKSPACE, mounts, volumes

Body = dict[str, Any]

USER = 65532
KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of trainers that keep autoscalers from evicting them: a freed node is worth less than the steps since the
last checkpoint.
"""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation by which `kubectl logs` and `exec` choose the container of a pod with sidecars."""
MODEL_CACHE = "models"
"""The init container that fills the model cache."""
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # Otherwise every start would change the owner of all files of a volume, which takes hours for a large one.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
_UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_CONTAINER_SECURITY = {**_UNPRIVILEGED, "readOnlyRootFilesystem": True}


@dataclass(frozen=True)
class NewPod:
    """A pod to be created, for an attempt of the trainer gang."""

    role: Role
    index: int
    attempt: int
    resume: bool
    rank: int = 0
    avoid: tuple[str, ...] = ()
    """Nodes to which it prefers others."""


def build_pod(pinned: Pinned, new: NewPod, uid: str) -> Body:
    """The pod's body, without namespace and owner; `uid`: the job's."""
    config, defaults, role, index, rank = pinned.config, pinned.defaults, new.role, new.index, new.rank
    section, name = config.spec.section(role), pod_name(config.job, role, index, rank)
    pods = combine(config.spec.pods, section.pods)
    on_node = shares_node_network(pods)
    process = process_of(config, role, index, uid, rank=rank, on_node=on_node)
    gang = GANGS[config.spec.scheduling.gang]
    container = {
        "name": "role",
        "image": pods.image or defaults.image,
        **_pull(pods, defaults),
        "workingDir": WORKSPACE,
        "env": environment_of(config, process, pods, uid, resume=new.resume),
        "envFrom": [{"secretRef": {"name": secret}} for secret in pods.secrets],
        "resources": _resources(pods),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": mounts(config, pods),
    }
    labels = {**role_labels(config.job, role), INDEX: str(index), ATTEMPT: str(new.attempt)}
    if pods_each(config.spec, role) > 1:
        labels[RANK] = str(rank)
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {DEFAULT_CONTAINER: "role", **(KEEP if role is Role.TRAINER else {})},
        },
        "spec": {
            "hostname": name,
            "subdomain": service_name(config.job),
            **({"dnsPolicy": "ClusterFirstWithHostNet"} if on_node else {}),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": role.row.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": _POD_SECURITY if defaults.pod_security is None else defaults.pod_security,
            **({"initContainers": [_model_cache(container, pods)]} if pods.model_cache else {}),
            "containers": [
                {
                    **container,
                    "command": command(config, process, torchrun=defaults.torchrun),
                    "ports": ports(config, process, on_node),
                    **(_probes(role, section) | _lifecycle(role) if listens(process) else {}),
                }
            ],
            "volumes": volumes(config, pods, pinned.name, defaults),
            **_gpu_claims(config.job, uid, role, pods.gpu),
            **_placement(pods, defaults),
        },
    }
    added = {"spec": _added(body["spec"], as_object(pods.template.get("spec")))}
    merged: Body = merge(merge(gang.join(body, config.job), added), pods.template)
    if defaults.requests:
        _request_memory(merged["spec"], host_memory(config.spec, role))
    return prefer_others(merged, new.avoid)


def without_requests(pinned: Pinned) -> Pinned:
    """The configuration with pods that request nothing unasked."""
    return replace(pinned, defaults=pinned.defaults.model_copy(update={"requests": False}))


def _added(spec: Body, template: Mapping[str, Any]) -> Body:
    """The containers that the template adds to those of `spec`, with the privileges that they have unless it says
    otherwise. The API server refuses a privileged container with these."""
    containers_by_kind: Body = {}
    for kind in ("containers", "initContainers"):
        ours = {container["name"] for container in spec.get(kind, ())}
        containers_by_kind[kind] = [
            {"name": container["name"], "securityContext": _UNPRIVILEGED}
            for container in template.get(kind, ())
            if container["name"] not in ours
            and not as_object(container.get("securityContext")).get("privileged")
        ]
    return {kind: containers for kind, containers in containers_by_kind.items() if containers}


def _model_cache(role: Body, pods: PodSettings) -> Body:
    """The init container that downloads the role's models into the cache; it has the role container's settings without
    GPUs.
    """
    hub = {"HF_HUB_CACHE": literal(pods.model_cache or ""), "HF_HUB_OFFLINE": "0"}
    env = [each for each in role["env"] if each["name"] not in hub]
    resources = _resources(pods.model_copy(update={"gpu": None}))
    return {
        **role,
        "name": MODEL_CACHE,
        "command": ["python3", "-P", "-m", "rlhf_trainer.model_cache"],
        "env": [*env, *({"name": name, "value": value} for name, value in hub.items())],
        "resources": resources,
    }


def _pull(pods: PodSettings, defaults: Defaults) -> Body:
    policy = pods.image_pull_policy or defaults.image_pull_policy
    return {"imagePullPolicy": policy} if policy else {}


def _resources(pods: PodSettings) -> Body:
    requests, limits = dict(pods.resources.requests), dict(pods.resources.limits)
    claims = [{"name": GPU_CLAIM}] if is_claimed(pods.gpu) else []
    if pods.gpu is not None and not claims:
        limits[pods.gpu.resource] = requests[pods.gpu.resource] = str(pods.gpu.count)
    resources = {"requests": requests, "limits": limits, "claims": claims}
    return {kind: amounts for kind, amounts in resources.items() if amounts}


def _request_memory(spec: Body, memory: str | None) -> None:
    """Gives the role's container a request, unless it or its pod asks for anything already."""
    container = next(each for each in spec["containers"] if each["name"] == "role")
    if memory and not spec.get("resources") and not container.get("resources"):
        container["resources"] = {"requests": {"memory": memory}}


def is_claimed(gpu: Gpu | None) -> TypeGuard[Gpu]:
    """True for GPUs that pods claim from a DeviceClass."""
    return gpu is not None and gpu.device_class is not None


def _gpu_claims(job: str, uid: str, role: Role, gpu: Gpu | None) -> Body:
    if not is_claimed(gpu):
        return {}
    template = {"resourceClaimTemplateName": claim_template_name(job, uid, role, gpu)}
    return {"resourceClaims": [{"name": GPU_CLAIM, **template}]}


def _probes(role: Role, section: RoleSpec) -> Body:
    """Startup, readiness and liveness probes: startup bounds the loading of a model, readiness shows which server
    serves, liveness detects hangs."""

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


def _placement(pods: PodSettings, defaults: Defaults) -> Body:
    secrets = dict.fromkeys((*defaults.image_pull_secrets, *pods.image_pull_secrets))
    tolerations = [t.model_dump(by_alias=True, exclude_none=True) for t in pods.tolerations]
    fields: Body = {
        "nodeSelector": dict(pods.node_selector),
        "tolerations": tolerations,
        "priorityClassName": pods.priority_class,
        "imagePullSecrets": [{"name": secret} for secret in secrets],
    }
    return {key: value for key, value in fields.items() if value}
