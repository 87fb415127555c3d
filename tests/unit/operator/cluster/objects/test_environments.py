"""Pods of environments: code that need not be trusted has no keys of the job, and reaches what is listed."""

from typing import Any

import kubernetes_validate
import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.objects.test_pod import (
    EVERYTHING,
    env,
    owner,
    pinned,
    pod,
    role_container,
)

from rlhf_api.contract.run import role_token
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.roles import UNTRUSTED, Role
from rlhf_api.rules.pods.placement import cluster_problems
from rlhf_operator.cluster.objects.companions import companions, owned, token, token_secret
from rlhf_operator.job.names import role_labels
from rlhf_operator.job.ports import PORT, http_port

ENVIRONMENT = "spec.environment={path: 'a:B', replicas: 2, backoffLimit: 7, startupTimeoutSeconds: 60}"
GIVEN = (*EVERYTHING, ENVIRONMENT)


def policies(*overrides: str) -> list[dict[str, Any]]:
    made = companions(pinned(*overrides), "job-uid", "system")
    return [body["spec"] for body in made if body["kind"] == "NetworkPolicy"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """As the API server does, of these operators."""
    expressions = selector.get("matchExpressions", ())
    assert all(each["operator"] == "NotIn" for each in expressions)
    excluded = any(labels.get(each["key"]) in each["values"] for each in expressions)
    return selector["matchLabels"].items() <= labels.items() and not excluded


def test_its_objects_are_valid_for_kubernetes_1_37() -> None:
    made = [*companions(pinned(*GIVEN), "job-uid", "system"), token_secret(b"k", owner())]
    for body in (pod(Role.ENVIRONMENT, *GIVEN), *made):
        kubernetes_validate.validate(owned(body, owner()), "1.37", strict=True)


def test_it_has_of_the_jobs_pods_what_says_where_it_runs_and_none_of_their_keys() -> None:
    body = pod(Role.ENVIRONMENT, *GIVEN)
    spec, container = body["spec"], role_container(body)
    assert container["image"] == "trainer:1"
    assert spec["priorityClassName"] == "high"
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert (container["envFrom"], container["resources"]) == ([], {})
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "tmp", "shared-memory", "workspace"}
    assert "X" not in env(body), "the job's template may name a secret too"
    assert spec["automountServiceAccountToken"] is False


def test_its_own_settings_are_as_any_roles() -> None:
    own = (
        "spec.environment.pods={image: 'games:1', secrets: [own], volumes: [{name: v, mountPath: /v, "
        "claim: c}], resources: {limits: {memory: 2Gi}}}"
    )
    body = pod(Role.ENVIRONMENT, *GIVEN, own)
    container = role_container(body)
    assert container["image"] == "games:1"
    assert container["envFrom"] == [{"secretRef": {"name": "own"}}]
    assert container["resources"] == {"limits": {"memory": "2Gi"}}
    assert body["spec"]["volumes"][-1]["name"] == "v"
    assert container["startupProbe"]["failureThreshold"] == 30
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["command"][-1] == "rlhf_trainer.roles.environment"


def test_it_reads_the_work_directory_and_does_not_write_it() -> None:
    for role, is_read_only in ((Role.ENVIRONMENT, True), (Role.TRAINER, False)):
        mounted = {each["name"]: each for each in role_container(pod(role, *GIVEN))["volumeMounts"]}
        assert mounted["workspace"].get("readOnly", False) is is_read_only


def test_its_token_is_not_the_jobs() -> None:
    given = env(pod(Role.ENVIRONMENT, *GIVEN))["RLHF_TOKEN"]
    assert given == {"secretKeyRef": {"name": "job-token-1-environment", "key": "token"}}
    own, tokens = token(b"k", owner()), set[str]()
    for role in (Role.TRAINER, *UNTRUSTED):
        data = token_secret(b"k", owner(), role)["stringData"]
        assert data == {"token": role_token(own, role)}
        tokens.add(data["token"])
    assert own in tokens
    assert len(tokens) == 1 + len(UNTRUSTED)


@pytest.mark.parametrize("network", [False, True])
def test_the_trainer_alone_reaches_it_and_it_reaches_what_network_says(*, network: bool) -> None:
    ours, its = policies(*GIVEN, f"spec.environment.network={str(network).lower()}")
    labels = {role: role_labels("job", role) for role in Role}
    assert [role for role in Role if selects(its["podSelector"], labels[role])] == [Role.ENVIRONMENT]
    assert Role.ENVIRONMENT not in [role for role in Role if selects(ours["podSelector"], labels[role])]
    (rule,) = its["ingress"]
    (peer,) = rule["from"]
    assert [role for role in Role if selects(peer["podSelector"], labels[role])] == [Role.TRAINER]
    assert rule["ports"] == [{"port": PORT, "protocol": "TCP"}]
    assert its["policyTypes"] == ["Ingress", "Egress"]
    assert its["egress"] == ([{}] if network else [])
    (among, _from_outside) = ours["ingress"]
    (peer,) = among["from"]
    assert not selects(peer["podSelector"], labels[Role.ENVIRONMENT]), "even with a network"


def test_a_job_without_the_role_has_the_policy_that_it_had() -> None:
    (policy,) = policies()
    assert "matchExpressions" not in policy["podSelector"]


def test_ports_on_a_nodes_network_are_those_of_jobs_that_began_before_it() -> None:
    first = http_port("u", Role.TRAINER, 0)
    assert http_port("u", Role.GENERATOR, 1) == first + 5, "of four roles"


def test_it_has_no_place_in_a_pod_that_processes_share() -> None:
    problems = [each.where for each in cluster_problems(job(*GIVEN, "spec.placement=shared").spec)]
    assert "spec.environment.replicas" in problems


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (("spec.environment={path: 'a:B', pods: {image: i}}",), "spec.environment.pods"),
        (("spec.environment={path: 'a:B', backoffLimit: 9}",), "spec.environment.backoffLimit"),
        (
            (ENVIRONMENT, "spec.trainer.replicas=2", "spec.generator={sharedWithTrainer: true}"),
            "spec.environment.replicas",
        ),
    ],
)
def test_what_a_role_has_is_refused_without_one(overrides: tuple[str, ...], where: str) -> None:
    with pytest.raises(InvalidJob, match=where):
        job(*overrides)
