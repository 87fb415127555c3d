"""Builds the container of a role's process, and the one that fills its model cache before."""

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

from rlhf_api.contract.run import command, listens
from rlhf_api.roles import (
    HEALTH,
    HUNG_GRACE_SECONDS,
    LIVE_FAILURES,
    LIVE_SECONDS,
    LIVE_TIMEOUT_SECONDS,
    Role,
)
from rlhf_api.rules.pods.template import CONTAINER
from rlhf_api.sections.pods import Gpu, PodSettings
from rlhf_api.sections.roles import RoleSpec
from rlhf_api.spec import Spec

from ...job.names import GPU_CLAIM
from ..config.settings import Defaults
from .pinned import Pinned
from .pod_process import environment_of, literal, ports, process_of
from .pod_volumes import WORKSPACE, mounts
from .sandbox_pod import sandbox_container

Body = dict[str, Any]

MODEL_CACHE = "models"
"""The init container that fills the model cache; of a process that shares its pod, with its role behind."""
UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_SECURITY = {**UNPRIVILEGED, "readOnlyRootFilesystem": True}


@dataclass(frozen=True)
class Place:
    """A process of a job, in a container of this name."""

    role: Role
    index: int
    rank: int = 0
    container: str = CONTAINER


def build_containers(
    pinned: Pinned, place: Place, pods: PodSettings, uid: str, *, resume: bool, on_node: bool
) -> tuple[Body, Body | None]:
    """The container of a process, and the init container that fills its role's model cache, if it has one. `pods`: its
    settings; `uid`: the job's; `on_node`: in the node's network."""
    config, defaults, role = pinned.config, pinned.defaults, place.role
    process = process_of(config, role, place.index, uid, rank=place.rank, on_node=on_node)
    container = {
        "name": place.container,
        "image": pods.image or defaults.image,
        **_pull(pods, defaults),
        "workingDir": WORKSPACE,
        "env": environment_of(config, process, pods, uid, resume=resume),
        "envFrom": [{"secretRef": {"name": secret}} for secret in pods.secrets],
        "resources": _resources(pods),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": _SECURITY,
        "volumeMounts": mounts(config, role, pods),
    }
    section = config.view_of(role, place.index).spec.section(role)
    served = _probes(config.spec, section, place) | _lifecycle(role) if listens(process) else {}
    if role is Role.SANDBOX:
        container = sandbox_container(container, config, process, pods, uid)
        return {**container, "ports": ports(config, process, on_node), **served}, None
    command_line = command(config, process, torchrun=defaults.torchrun)
    cached = pods.model_cache and (place.container == CONTAINER or not place.index)
    cache = _model_cache(container, place, pods) if cached else None
    return {**container, "command": command_line, "ports": ports(config, process, on_node), **served}, cache


def _model_cache(container: Body, place: Place, pods: PodSettings) -> Body:
    """The init container that downloads the role's models into the cache; it has the role container's settings without
    GPUs.
    """
    hub = {"HF_HUB_CACHE": literal(pods.model_cache or ""), "HF_HUB_OFFLINE": "0"}
    env = [each for each in container["env"] if each["name"] not in hub]
    resources = _resources(pods.model_copy(update={"gpu": None}))
    return {
        **container,
        "name": MODEL_CACHE if place.container == CONTAINER else f"{MODEL_CACHE}-{place.role.value}",
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


def is_claimed(gpu: Gpu | None) -> TypeGuard[Gpu]:
    """True for GPUs that pods claim from a DeviceClass."""
    return gpu is not None and gpu.device_class is not None


def _probes(spec: Spec, section: RoleSpec, place: Place) -> Body:
    """Startup, readiness and liveness probes: startup bounds the loading of a model, readiness shows which server
    serves, liveness detects hangs. In a shared pod, whose grace period is the trainer's, those that end a container
    have its role's; and the trainer has one that ends it alone where it makes no progress."""
    role = place.role
    grace = {} if place.container == CONTAINER else {"terminationGracePeriodSeconds": role.row.grace_seconds}

    def probe(path: str, period: int, failures: int) -> Body:
        get = {"path": path, "port": "http"}
        times = {"periodSeconds": period, "timeoutSeconds": LIVE_TIMEOUT_SECONDS}
        return {"httpGet": get, **times, "failureThreshold": failures}

    probes = {
        "startupProbe": probe(HEALTH, 2, math.ceil(section.startup_timeout_seconds / 2)) | grace,
        "readinessProbe": probe(role.row.ready, 5, 2),
    }
    if role.row.live is not None:
        probes["livenessProbe"] = probe(role.row.live, LIVE_SECONDS, LIVE_FAILURES) | grace
    elif role.row.progress is not None and spec.placement == "shared":
        times = math.ceil(spec.trainer.progress_deadline_seconds / LIVE_SECONDS)
        hung = {"terminationGracePeriodSeconds": HUNG_GRACE_SECONDS}
        probes["livenessProbe"] = probe(role.row.progress, LIVE_SECONDS, times) | hung
    return probes


def _lifecycle(role: Role) -> Body:
    if role.row.drain is None:
        return {}
    return {"lifecycle": {"preStop": {"httpGet": {"path": role.row.drain, "port": "http"}}}}
