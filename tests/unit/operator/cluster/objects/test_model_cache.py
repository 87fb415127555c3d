"""The init container that fills the model cache, and what is said of it."""

import pytest
from tests.unit.api.manifests import document, job, refusals
from tests.unit.operator.cluster.world import TODAY, running

from rlhf_api.manifest.load import from_cluster
from rlhf_api.roles import Role
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.pod import NewPod, build_pod

CLAIM = "spec.pods.volumes=[{name: models, mountPath: /models, claim: models}]"
CACHE = "spec.pods.modelCache=/models/hub"


def pod(role: Role, *overrides: str):
    made = Pinned.make("job", job(*overrides).spec, TODAY)
    return build_pod(made, NewPod(role, 0, attempt=1, resume=False), "u")["spec"]


def environment(container) -> dict[str, str]:
    return {each["name"]: each.get("value") for each in container["env"]}


def test_models_are_put_where_the_role_looks_for_them():
    gpu = "spec.generator.pods.gpu={count: 1, memoryGigabytes: 80}"
    spec = pod(Role.GENERATOR, CLAIM, CACHE, gpu, "spec.pods.secrets=[hub-token]")
    (init,), (role,) = spec["initContainers"], spec["containers"]
    assert init["command"] == ["python3", "-P", "-m", "rlhf_trainer.model_cache"]
    assert environment(init)["HF_HUB_CACHE"] == environment(role)["HF_HUB_CACHE"] == "/models/hub"
    assert (environment(init)["HF_HUB_OFFLINE"], environment(role)["HF_HUB_OFFLINE"]) == ("0", "1")
    for same in ("image", "volumeMounts", "envFrom", "securityContext", "workingDir"):
        assert init[same] == role[same]
    assert "nvidia.com/gpu" in role["resources"]["limits"]
    assert init["resources"] == {}
    assert "livenessProbe" not in init


def test_a_job_may_go_on_asking_the_hub():
    (init,), (role,) = (
        pod(Role.REWARD, CLAIM, CACHE, "spec.env={HF_HUB_OFFLINE: '0'}")[kind]
        for kind in ("initContainers", "containers")
    )
    assert environment(role)["HF_HUB_OFFLINE"] == environment(init)["HF_HUB_OFFLINE"] == "0"
    assert [each["name"] for each in init["env"]].count("HF_HUB_OFFLINE") == 1


def test_without_a_cache_there_is_no_init_container():
    assert "initContainers" not in pod(Role.TRAINER, CLAIM)


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ((CACHE,), "spec.pods.modelCache"),
        ((CLAIM.replace("claim: models", "claim: models, readOnly: true"), CACHE), "spec.pods.modelCache"),
        ((CLAIM, "spec.reward.pods.modelCache=/model"), "spec.reward.pods.modelCache"),
    ],
    ids=["no volume", "read only", "beside it"],
)
def test_a_cache_lies_on_a_volume_that_can_be_written(overrides, field):
    ((where, message),) = refusals(*overrides).items()
    assert where == field
    assert "must lie on a volume that can be written (/workspace" in message


@pytest.mark.parametrize(
    "overrides",
    [
        (CLAIM, CACHE),
        ("spec.pods.modelCache=/workspace/models",),
        (CACHE, "spec.runtime.name=shared"),
        (CLAIM, "spec.generator.pods.modelCache=/models"),
    ],
    ids=["volume", "workspace", "a runtime's volume", "one role's"],
)
def test_where_a_cache_may_lie(overrides):
    assert from_cluster(document(*overrides)).spec


def test_a_pod_that_fills_the_cache_is_named_while_it_does():
    world = running()
    world.end("job-generator-0", 1)
    world.settle()
    for name in ("job-generator-0", "job-reward-0"):
        world.pods[name]["status"] = {
            "phase": "Pending",
            "initContainerStatuses": [
                {"name": "models", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
            ],
        }
    world.step()
    assert "job-generator-0 (and 1 more) fills the model cache: `kubectl logs job-generator-0 -c models`" in (
        world.status.message
    )
    world.kubelet()
    world.step()
    assert "model cache" not in world.status.message
