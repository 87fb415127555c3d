"""NetworkPolicies of a job's pods; pure.

Policies add up: what one allows, no other one takes back. So the one of the job leaves environments out, whose code
need not be trusted, and they have one of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_api.contract.run import RunConfig, places, roles_of, shares_pod
from rlhf_api.roles import Role

from ...job.names import (
    OPERATOR,
    ROLE,
    common_labels,
    environment_policy_name,
    policy_name,
    role_labels,
)
from ...job.ports import PORT

Body = dict[str, Any]


def network_policies(
    config: RunConfig, uid: str, operator_namespace: str, metrics_from: Sequence[Body]
) -> Iterator[Body]:
    """`uid`: the job's; `metrics_from`: peers that may scrape its pods."""
    section = config.spec.environment
    if section is None or Role.ENVIRONMENT not in roles_of(config.spec):
        yield _policy(config, uid, {}, operator_namespace, metrics_from)
        return
    others = {"matchExpressions": [{"key": ROLE, "operator": "NotIn", "values": [Role.ENVIRONMENT.value]}]}
    yield _policy(config, uid, others, operator_namespace, metrics_from)
    yield _environment_policy(config.job, uid, network=section.network)


def _policy(
    config: RunConfig, uid: str, besides: Body, operator_namespace: str, metrics_from: Sequence[Body]
) -> Body:
    """Only the job's own pods reach each other, and the operator and `metrics_from` reach their HTTP ports; `besides`:
    what else tells these pods."""
    job, spec = config.job, config.spec
    processes = sum(len(places(spec, role)) for role in roles_of(spec)) if shares_pod(spec) else 1
    ports = [{"port": PORT + i, "protocol": "TCP"} for i in range(processes)]
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": OPERATOR}},
    }
    pods = {"matchLabels": common_labels(job), **besides}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": policy_name(job, uid), "labels": common_labels(job)},
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": pods}]},
                {"from": [operator, *metrics_from], "ports": ports},
            ],
        },
    }


def _environment_policy(job: str, uid: str, *, network: bool) -> Body:
    """Only the trainer reaches environments, at their HTTP port, and they reach nothing unless `network`."""
    trainer = {"podSelector": {"matchLabels": role_labels(job, Role.TRAINER)}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": environment_policy_name(job, uid), "labels": common_labels(job)},
        "spec": {
            "podSelector": {"matchLabels": role_labels(job, Role.ENVIRONMENT)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [trainer], "ports": [{"port": PORT, "protocol": "TCP"}]}],
            "egress": [{}] if network else [],
        },
    }
