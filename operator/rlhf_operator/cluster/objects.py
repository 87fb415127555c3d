"""What a job has beside its pods: service, token, configuration, network policy, gang; pure."""

import hashlib
import hmac
from typing import Any

from rlhf_api.run import RunConfig
from rlhf_api.spec import Spec

from .gangs import GANGS
from .names import OPERATOR, common_labels, service_name, token_name
from .observed import Job
from .pod import PORT, RESUME_CONFIG, START_CONFIG, WORKSPACE

Body = dict[str, Any]


def run_config(job: str, spec: Spec) -> RunConfig:
    """The configuration of a job's processes. What may change while they run is left out, but for the number of
    generators, which the trainer waits for at first."""
    lasting = spec.model_copy(
        update={"suspend": False, "active_deadline_seconds": None, "ttl_seconds_after_finished": None}
    )
    return RunConfig(job=job, spec=lasting, workdir=f"{WORKSPACE}/runs/{job}", resume=spec.checkpoint.resume)


def config_name(config: RunConfig) -> str:
    """The ConfigMap's name: one for each configuration, whatever the number of generators."""
    any_generators = config.spec.generator.model_copy(update={"replicas": 1})
    same = config.model_copy(update={"spec": config.spec.model_copy(update={"generator": any_generators})})
    digest = hashlib.sha256(same.model_dump_json(by_alias=True).encode()).hexdigest()
    return f"{config.job}-config-{digest[:10]}"


def token(key: bytes, job: Job) -> str:
    """The job's token: made from the operator's key, so that no Secret needs to be read back."""
    return hmac.new(key, job.uid.encode(), hashlib.sha256).hexdigest()


def token_secret(key: bytes, job: Job) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": token_name(job.name), "labels": common_labels(job.name)},
        "immutable": True,
        "stringData": {"token": token(key, job)},
    }


def companions(config: RunConfig, name: str, operator_namespace: str) -> list[Body]:
    """Everything that can be applied again at any time; `name` is the ConfigMap's."""
    group = GANGS[config.spec.scheduling.gang].group(config)
    return [
        _config_map(config, name),
        _service(config.job),
        _policy(config.job, operator_namespace),
        *([group] if group else []),
    ]


def _config_map(config: RunConfig, name: str) -> Body:
    resumed = config.model_copy(update={"resume": True})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": common_labels(config.job)},
        "data": {
            START_CONFIG: config.model_dump_json(by_alias=True, indent=1),
            RESUME_CONFIG: resumed.model_dump_json(by_alias=True, indent=1),
        },
    }


def _service(job: str) -> Body:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service_name(job), "labels": common_labels(job)},
        "spec": {
            "clusterIP": "None",
            # Trainers meet before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": common_labels(job),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _policy(job: str, operator_namespace: str) -> Body:
    """Only the job's own pods reach each other, and the operator their HTTP port."""
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": OPERATOR}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": service_name(job), "labels": common_labels(job)},
        "spec": {
            "podSelector": {"matchLabels": common_labels(job)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": {"matchLabels": common_labels(job)}}]},
                {"from": [operator], "ports": [{"port": PORT, "protocol": "TCP"}]},
            ],
        },
    }


def owned(body: Body, job: Job) -> Body:
    """The object in the job's namespace, deleted with it."""
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
