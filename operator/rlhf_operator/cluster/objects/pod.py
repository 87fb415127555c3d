"""Builds a role's pod: the contract's commands and environment, in a pod that the `restricted` standard admits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlhf_api.contract.run import pods_each, shares_pod
from rlhf_api.estimate.resources import host_memory
from rlhf_api.roles import Role
from rlhf_api.rules.pods.template import CONTAINER
from rlhf_api.sections.pods import Gpu, PodSettings

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
from .pod_container import UNPRIVILEGED, build_containers, is_claimed
from .pod_process import shares_node_network
from .pod_sharing import IN_ONE_POD, process_settings, processes_in, with_templates
from .pod_volumes import volumes
from .sandbox_pod import sandbox_volumes, user_of

Body = dict[str, Any]

USER = 65532
KEEP = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of trainers that keep autoscalers from evicting them: a freed node is worth less than the steps since the
last checkpoint.
"""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation by which `kubectl logs` and `exec` choose the container of a pod with sidecars."""
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    # Otherwise every start would change the owner of all files of a volume, which takes hours for a large one.
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}


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
    name, pods = pod_name(config.job, role, index, rank), config.view_of(role, index).spec.pods_of(role)
    on_node, shared = shares_node_network(pods), shares_pod(config.spec)
    processes = processes_in(config.spec, role, index, rank)
    views = [config.view_of(place.role, place.index).spec for place in processes]
    built = [
        build_containers(
            *(pinned, place, process_settings(view, place.role), uid),
            resume=new.resume,
            on_node=on_node,
        )
        for place, view in zip(processes, views, strict=True)
    ]
    caches = [cache for _, cache in built if cache is not None]
    gang = GANGS[config.spec.scheduling.gang]
    labels = {**role_labels(config.job, role), INDEX: str(index), ATTEMPT: str(new.attempt)}
    if pods_each(config.spec, role) > 1:
        labels[RANK] = str(rank)
    body: Body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {DEFAULT_CONTAINER: CONTAINER, **(KEEP if role is Role.TRAINER else {})},
        },
        "spec": {
            "hostname": name,
            "subdomain": service_name(config.job),
            **({"dnsPolicy": "ClusterFirstWithHostNet"} if on_node else {}),
            **(IN_ONE_POD if shared else {"restartPolicy": "Never"}),
            "terminationGracePeriodSeconds": role.row.grace_seconds,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": _security(uid, new)
            if defaults.pod_security is None
            else defaults.pod_security,
            **({"initContainers": caches} if caches else {}),
            "containers": [container for container, _ in built],
            "volumes": sandbox_volumes(config, pods, uid)
            if role is Role.SANDBOX
            else volumes(config, pods, pinned.name, defaults),
            **_gpu_claims(config.job, uid, role, pods.gpu),
            **_placement(pods, defaults),
        },
    }
    added = {"spec": _added(body["spec"], as_object(pods.template.get("spec")))}
    merged: Body = merge(merge(gang.join(body, config.job), added), pods.template)
    if shared:
        merged["spec"]["containers"] = with_templates(config.spec, merged["spec"]["containers"])
    if defaults.requests:
        for place, view in zip(processes, views, strict=True):
            _request_memory(merged["spec"], place.container, host_memory(view, place.role))
    return prefer_others(merged, new.avoid)


def _security(uid: str, new: NewPod) -> Body:
    user = user_of(uid, new.role, new.index)
    own = {} if user is None else {"runAsUser": user, "runAsGroup": user, "fsGroup": user}
    return {**_POD_SECURITY, **own}


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
            {"name": container["name"], "securityContext": UNPRIVILEGED}
            for container in template.get(kind, ())
            if container["name"] not in ours
            and not as_object(container.get("securityContext")).get("privileged")
        ]
    return {kind: containers for kind, containers in containers_by_kind.items() if containers}


def _request_memory(spec: Body, name: str, memory: str | None) -> None:
    """Gives a process's container a request, unless it or its pod asks for anything already."""
    container = next(each for each in spec["containers"] if each["name"] == name)
    if memory and not spec.get("resources") and not container.get("resources"):
        container["resources"] = {"requests": {"memory": memory}}


def _gpu_claims(job: str, uid: str, role: Role, gpu: Gpu | None) -> Body:
    if not is_claimed(gpu):
        return {}
    template = {"resourceClaimTemplateName": claim_template_name(job, uid, role, gpu)}
    return {"resourceClaims": [{"name": GPU_CLAIM, **template}]}


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
