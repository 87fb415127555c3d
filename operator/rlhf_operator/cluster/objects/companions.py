"""Companion objects of a job's pods: service, token, configuration, network policy, gang; pure."""

import hashlib
import hmac
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from rlhf_api.contract.run import pods_each, replicas, role_token, roles_of
from rlhf_api.contract.teachers import view_of
from rlhf_api.estimate.resources import gpu_of
from rlhf_api.roles import UNTRUSTED, Role
from rlhf_api.spec import Spec

from ...job.names import claim_template_name, common_labels, service_name, token_name
from ...job.pod_resources import requests, total
from ...job.ports import PORT
from ...job.snapshot import Job
from ...kube.kinds import CLAIMS
from .gangs import GANGS, Needs
from .network_policies import network_policies
from .pinned import Pinned
from .pod import NewPod, build_pod
from .pod_container import is_claimed
from .pod_process import TOKEN
from .pod_sets import pod_sets
from .sandbox_pod import sandbox_files

Body = dict[str, Any]


def token(key: bytes, job: Job) -> str:
    """The job's token, derived from the operator's key, so that no Secret has to be read."""
    return hmac.new(key, job.uid.encode(), hashlib.sha256).hexdigest()


def token_secrets(key: bytes, job: Job, spec: Spec) -> list[Body]:
    """The Secrets of the tokens that the job's roles have."""
    roles = (Role.TRAINER, *(role for role in UNTRUSTED if role in roles_of(spec)))
    return [token_secret(key, job, role) for role in roles]


def token_secret(key: bytes, job: Job, role: Role = Role.TRAINER) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": token_name(job.name, job.uid, role), "labels": common_labels(job.name)},
        "immutable": True,
        "stringData": {TOKEN: role_token(token(key, job), role)},
    }


def companions(
    pinned: Pinned,
    uid: str,
    operator_namespace: str,
    metrics_from: Sequence[Body] = (),
    gang: Mapping[Role, int] = MappingProxyType({}),
) -> list[Body]:
    """Objects that may be applied at any time. `uid`: the job's; `metrics_from`: NetworkPolicy peers that may scrape
    its pods; `gang`: pods of each role that are scheduled together, where the job asks for that."""
    config = pinned.config
    group = GANGS[config.spec.scheduling.gang].group(config, _needs(pinned, uid, gang))
    return [
        pinned.config_map(),
        *([_service(config.job)] if _meets(config.spec) else []),
        *([sandbox_files(config.job, uid)] if Role.SANDBOX in roles_of(config.spec) else []),
        *network_policies(config, uid, operator_namespace, metrics_from),
        *([group] if group else []),
        *_claim_templates(config.job, uid, config.spec),
    ]


def _claim_templates(job: str, uid: str, spec: Spec) -> list[Body]:
    """ResourceClaimTemplates of the roles whose GPUs are claimed: Kubernetes makes a claim of it for each pod."""
    templates = []
    kinds = [(kind.role, view_of(spec, kind.role, kind.first)) for kind in pod_sets(spec)]
    for role, gpu in dict.fromkeys((role, gpu_of(view, role)) for role, view in kinds):
        if is_claimed(gpu):
            exactly = {
                "deviceClassName": gpu.device_class,
                "allocationMode": "ExactCount",
                "count": gpu.count,
            }
            name = claim_template_name(job, uid, role, gpu)
            templates.append(
                {
                    "apiVersion": CLAIMS,
                    "kind": "ResourceClaimTemplate",
                    "metadata": {"name": name, "labels": common_labels(job)},
                    "spec": {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}},
                }
            )
    return templates


def _needs(pinned: Pinned, uid: str, gang: Mapping[Role, int]) -> Needs:
    left, specs = dict(gang), list[tuple[Body, int]]()
    for kind in pod_sets(pinned.config.spec) if gang else ():
        pods = left.get(kind.role, 0)
        if kind.name != kind.role.value:  # one of several sets
            pods = min(pods, kind.count)
            left[kind.role] = left.get(kind.role, 0) - pods
        new = NewPod(kind.role, kind.first, 1, resume=False)
        specs.append((build_pod(pinned, new, uid)["spec"], pods))
    each = [{name: count * n for name, n in requests(spec).items()} for spec, count in specs]
    classes = (spec.get("priorityClassName") for spec, _ in specs)
    sums = {name: _quantity(n) for name, n in total(each).items() if n}
    return Needs(sum(gang.values()), next(filter(None, classes), None), sums)


def _quantity(amount: float) -> str:
    return str(int(amount)) if amount == int(amount) else f"{math.ceil(amount * 1000)}m"


def _meets(spec: Spec) -> bool:
    """True if pods find each other by DNS: further pods of the trainer or of a generator find the first one so. Other
    addresses are passed to them, and the kubelet writes a pod's own name into its /etc/hosts."""
    return replicas(spec, Role.TRAINER) > 1 or pods_each(spec, Role.GENERATOR) > 1


def _service(job: str) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service_name(job), "labels": common_labels(job)},
        "spec": {
            "clusterIP": "None",
            # Trainers rendezvous before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": common_labels(job),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def owned(body: Body, job: Job) -> Body:
    """The object in the job's namespace, with an owner reference to the job."""
    owner = {
        "apiVersion": job.body["apiVersion"],
        "kind": job.body["kind"],
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
    metadata = {**body["metadata"], "namespace": job.namespace, "ownerReferences": [owner]}
    return {**body, "metadata": metadata}
