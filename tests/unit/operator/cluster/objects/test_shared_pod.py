"""The one pod of roles that share GPUs: a container for each process, as Kubernetes 1.37 takes it."""

from typing import Any

import kubernetes_validate
from tests.unit.api.manifests import job

from rlhf_api.roles import Role
from rlhf_operator.cluster.config.settings import Settings
from rlhf_operator.cluster.objects.companions import companions
from rlhf_operator.cluster.objects.kueue import workload
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.job.names import GPU_CLAIM, QUEUE
from rlhf_operator.job.ports import PORT
from rlhf_operator.job.snapshot import Job

SETTINGS = Settings(trainer_image="trainer:1", token_key=b"k" * 32)
TWO_GPUS = "spec.trainer.pods.gpu={count: 2, deviceClass: gpu.nvidia.com, memoryGigabytes: 80}"
BASE = (
    "spec.placement=shared",
    "spec.trainer.processesPerReplica=2",
    "spec.generator={replicas: 2, engineArguments: {max-num-seqs: 8}}",
)
NAMES = ["role", "generator-0", "generator-1", "reward-0", "reference-0"]


def pinned(*overrides: str) -> Pinned:
    return Pinned.make("job", job(*BASE, *overrides).spec, SETTINGS.defaults)


def pod(*overrides: str) -> dict[str, Any]:
    return build_pod(pinned(*overrides), NewPod(Role.TRAINER, 0, 1, resume=False), "1")


def containers(*overrides: str) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in pod(*overrides)["spec"]["containers"]}


def variable(container: dict[str, Any], name: str) -> str | None:
    return next((each.get("value") for each in container["env"] if each["name"] == name), None)


def test_kubernetes_takes_the_pod() -> None:
    body = pod(TWO_GPUS, "spec.pods.modelCache=/workspace/cache")
    kubernetes_validate.validate(body, "1.37", strict=True)
    assert [each["name"] for each in body["spec"]["containers"]] == NAMES
    assert body["spec"]["restartPolicy"] == "OnFailure"
    assert body["spec"]["shareProcessNamespace"] is True
    caches = [each["name"] for each in body["spec"]["initContainers"]]
    assert caches == ["models", "models-generator", "models-reward", "models-reference"]


def test_every_process_has_the_claim_of_the_pod_and_knows_which_gpus_are_its_own() -> None:
    built = containers(TWO_GPUS)
    assert {name: variable(each, "CUDA_VISIBLE_DEVICES") for name, each in built.items()} == {
        "role": "0,1",
        "generator-0": "0",
        "generator-1": "1",
        "reward-0": "0",
        "reference-0": "1",
    }
    assert all(each["resources"] == {"claims": [{"name": GPU_CLAIM}]} for each in built.values())
    (template,) = [
        each
        for each in companions(pinned(TWO_GPUS), "1", "rlhf-system")
        if each["kind"] == "ResourceClaimTemplate"
    ]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 2
    (claim,) = pod(TWO_GPUS)["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]


def test_without_gpus_nothing_is_claimed() -> None:
    built = containers()
    assert not any("claims" in each["resources"] for each in built.values())
    assert not any(variable(each, "CUDA_VISIBLE_DEVICES") for each in built.values())
    assert "resourceClaims" not in pod()["spec"]


def test_the_processes_know_that_they_share() -> None:
    config = pinned(TWO_GPUS).config
    assert (config.shared_gpus, config.shared_gpu_count) == (True, 2)
    apart = Pinned.make("job", job().spec, SETTINGS.defaults).config
    assert (apart.shared_gpus, apart.shared_gpu_count) == (False, 0)


def test_each_process_listens_on_a_port_of_its_own_which_the_policy_opens() -> None:
    ports = [each["ports"][0]["containerPort"] for each in containers().values()]
    assert ports == [PORT, PORT + 1, PORT + 2, PORT + 3, PORT + 4]
    assert [variable(each, "RLHF_PORT") for each in containers().values()] == [*map(str, ports)]
    (policy,) = [each for each in companions(pinned(), "1", "rlhf-system") if each["kind"] == "NetworkPolicy"]
    assert [each["port"] for each in policy["spec"]["ingress"][1]["ports"]] == ports


def test_in_the_node_network_too() -> None:
    built = containers("spec.pods.template.spec.hostNetwork=true")
    ports = [port["containerPort"] for each in built.values() for port in each["ports"]]
    assert len(ports) == len({*ports}) == len(NAMES) + 1, "and the rendezvous of the trainer's ranks"


def test_a_template_for_all_roles_changes_the_container_of_each() -> None:
    spec = "{containers: [{name: role, env: [{name: X, value: y}]}, {name: side, image: s}]}"
    built = containers(f"spec.pods.template.spec={spec}")
    assert {name: variable(each, "X") for name, each in built.items() if name != "side"} == dict.fromkeys(
        NAMES, "y"
    )
    assert list(built) == [*NAMES, "side"]


def test_each_process_has_the_image_resources_and_secrets_of_its_role() -> None:
    built = containers(
        "spec.reward.pods={image: reward:2, secrets: [judge], resources: {requests: {cpu: '3'}}}"
    )
    assert (built["role"]["image"], built["reward-0"]["image"]) == ("trainer:1", "reward:2")
    assert built["reward-0"]["envFrom"] == [{"secretRef": {"name": "judge"}}]
    assert built["reward-0"]["resources"] == {"requests": {"cpu": "3"}}
    assert built["role"]["envFrom"] == []


def test_an_engine_that_hangs_has_the_grace_of_its_own_role() -> None:
    built = containers()
    assert pod()["spec"]["terminationGracePeriodSeconds"] == Role.TRAINER.row.grace_seconds
    for probe in ("startupProbe", "livenessProbe"):
        grace = built["generator-0"][probe]["terminationGracePeriodSeconds"]
        assert grace == Role.GENERATOR.row.grace_seconds
    assert "terminationGracePeriodSeconds" not in built["role"]["startupProbe"]


def test_a_trainer_that_makes_no_progress_is_ended_by_its_kubelet_beside_engines_that_live() -> None:
    deadline = "spec.trainer.progressDeadlineSeconds=610"
    probe = containers(deadline)["role"]["livenessProbe"]
    assert probe["httpGet"] == {"path": "/progress", "port": "http"}
    assert (probe["periodSeconds"], probe["failureThreshold"]) == (20, 31)
    assert probe["terminationGracePeriodSeconds"] == 30, "it will make no checkpoint"
    alone = Pinned.make("job", job(deadline).spec, SETTINGS.defaults)
    body = build_pod(alone, NewPod(Role.TRAINER, 0, 1, resume=False), "1")
    assert "livenessProbe" not in body["spec"]["containers"][0], "the operator ends its pod"


def test_kueue_admits_the_pod_as_one_of_the_trainer() -> None:
    body = job(*BASE).model_dump(mode="json", by_alias=True, exclude_unset=True)
    body["metadata"] |= {"namespace": "ns", "uid": "1", "labels": {QUEUE: "team"}}
    (pod_set,) = workload(Job.of(body), pinned())["spec"]["podSets"]
    assert (pod_set["name"], pod_set["count"]) == ("trainer", 1)
    assert [each["name"] for each in pod_set["template"]["spec"]["containers"]] == NAMES
