"""NetworkPolicies of a job's pods; pure.

Policies add up: what one allows, no other one takes back. So the one of the job leaves out the roles whose code need
not be trusted, and each of them has one of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_api.contract.run import RunConfig, places, roles_of, shares_pod
from rlhf_api.roles import UNTRUSTED, Role

from ...job.names import (
    OPERATOR,
    ROLE,
    common_labels,
    environment_policy_name,
    policy_name,
    role_labels,
    sandbox_policy_name,
)
from ...job.ports import PORT

Body = dict[str, Any]


def network_policies(
    config: RunConfig, uid: str, operator_namespace: str, metrics_from: Sequence[Body]
) -> Iterator[Body]:
    """`uid`: the job's; `metrics_from`: peers that may scrape its pods."""
    spec, apart = config.spec, [role for role in UNTRUSTED if role in roles_of(config.spec)]
    values = [role.value for role in apart]
    others = {"matchExpressions": [{"key": ROLE, "operator": "NotIn", "values": values}]} if apart else {}
    yield _policy(config, uid, others, operator_namespace, metrics_from)
    peers = [Role.TRAINER]
    if Role.ENVIRONMENT in apart:
        assert spec.environment is not None, "it has a role"
        reached = [_to_sandboxes(config.job)] if Role.SANDBOX in apart else []
        egress = [{}] if spec.environment.network else reached
        name = environment_policy_name(config.job, uid)
        yield _untrusted_policy(config.job, name, Role.ENVIRONMENT, peers, egress)
        peers.append(Role.ENVIRONMENT)
    if Role.SANDBOX in apart:
        assert spec.sandbox is not None, "it has a role"
        egress = [{}] if spec.sandbox.network else []
        name = sandbox_policy_name(config.job, uid)
        yield _untrusted_policy(config.job, name, Role.SANDBOX, peers, egress)


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


def _to_sandboxes(job: str) -> Body:
    sandboxes = {"podSelector": {"matchLabels": role_labels(job, Role.SANDBOX)}}
    return {"to": [sandboxes], "ports": [{"port": PORT, "protocol": "TCP"}]}


def _untrusted_policy(job: str, name: str, role: Role, peers: Sequence[Role], egress: Sequence[Body]) -> Body:
    """Only pods of these roles reach the role's, at their HTTP port, and those reach nothing but `egress`."""
    allowed = [{"podSelector": {"matchLabels": role_labels(job, peer)}} for peer in peers]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": common_labels(job)},
        "spec": {
            "podSelector": {"matchLabels": role_labels(job, role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": allowed, "ports": [{"port": PORT, "protocol": "TCP"}]}],
            "egress": [*egress],
        },
    }
