"""GPU-hours and cost in a job's status: what its pods held, for as long as they held it."""

import pytest
from tests.unit.operator.cluster.test_reconciler import KEY, Server, Story, tell
from tests.unit.operator.cluster.world import World, running

from rlhf_api.contract.report import TrainerStatus
from rlhf_api.manifest.runtime import parse_runtime
from rlhf_operator.cluster.act.status_writer import is_worth_writing
from rlhf_operator.cluster.decide.usage import cost_per_hour
from rlhf_operator.kube.api_error import ApiError

GPUS = (
    "spec.trainer.processesPerReplica=4",
    "spec.trainer.pods.gpu.count=4",
    "spec.generator.replicas=2",
    "spec.generator.pods.gpu={count: 1, resource: nvidia.com/mig}",
)
PRICES = {"nvidia.com/gpu": 2.5, "nvidia.com/mig": 0.5}
PER_HOUR = 4 * 2.5 + 2 * 0.5


def held(world: World) -> tuple[float, float]:
    assert world.status is not None
    return (world.status.gpu_seconds or 0) / 3600, world.status.cost or 0


@pytest.fixture
def world() -> World:
    """Runs with six GPUs, and has just been counted at these prices."""
    made = running(*GPUS)
    made.step(0, prices=PRICES)
    return made


def test_hours_and_cost_grow_while_gpus_are_held_and_stand_still_while_not(world):
    hours, cost = held(world)
    world.now = world.now.replace(hour=world.now.hour + 3)
    world.step(0, prices=PRICES)
    assert held(world) == pytest.approx((hours + 18, cost + 3 * PER_HOUR))
    world.end("job-trainer-0", code=0)
    world.step(0, prices=PRICES)
    world.kubelet()
    world.step(3600, prices=PRICES)
    assert world.status.phase == "Succeeded"
    assert (world.status.gpus, world.status.cost_per_hour) == (0, None)
    after = held(world)
    world.step(3600, prices=PRICES)
    assert held(world) == after == pytest.approx((hours + 18, cost + 3 * PER_HOUR))


def test_a_suspended_job_uses_nothing_and_goes_on_counting(world):
    world.overrides = (*GPUS, "spec.suspend=true")
    world.end("job-trainer-0", code=79)
    for _ in range(4):
        world.step(5, prices=PRICES)
        world.kubelet()
    assert world.status.phase == "Suspended"
    before = held(world)
    world.step(7200, prices=PRICES)
    world.overrides = GPUS
    for _ in range(3):
        world.step(0, prices=PRICES)
        world.kubelet()
    assert world.status.gpus == 6
    assert held(world) == before
    world.step(3600, prices=PRICES)
    world.step(0, prices=PRICES)
    assert held(world) == pytest.approx((before[0] + 6, before[1] + PER_HOUR))


def test_looks_that_are_not_written_lose_nothing(world):
    """Every look counts from the last status that was written, here one of six: to the second, after all of them."""
    hours, cost = held(world)
    begin = world.now
    for number in range(61):
        written = world.status
        world.step(5.37, prices=PRICES)
        if number % 6:
            world.status = written
    counted = (world.now - begin).total_seconds() - 5.37
    used = held(world)[0] - hours, held(world)[1] - cost
    assert used == pytest.approx((6 * counted / 3600, PER_HOUR * counted / 3600), abs=PER_HOUR / 3600)


def test_a_spec_that_is_refused_is_counted_to_its_end():
    world = running(*GPUS)
    world.configs.clear()
    before = held(world)
    world.status = world.status.model_copy(update={"cluster": None})
    world.now = world.now.replace(hour=world.now.hour + 1)
    world.overrides = (*GPUS, "spec.steps=-1")
    world.step(0)
    assert (world.status.phase, world.status.gpus) == ("Failed", 6)
    world.now = world.now.replace(hour=world.now.hour + 1)
    world.kubelet()
    world.step()
    assert (world.status.phase, world.status.gpus) == ("Failed", 0)
    assert world.status.gpu_seconds / 3600 == pytest.approx(before[0] + 12, rel=1e-3)


def test_pods_of_a_job_that_has_failed_hold_their_gpus_until_they_are_over():
    """A trainer has minutes of grace, and the cluster has none of its GPUs meanwhile."""
    deadline = "spec.activeDeadlineSeconds=60"
    world = running(*GPUS, deadline)
    world.step(120, prices=PRICES)
    world.step(0, prices=PRICES)
    assert (world.status.phase, world.status.gpus, world.status.cost_per_hour) == ("Failed", 6, PER_HOUR)
    hours, cost = held(world)
    world.now = world.now.replace(minute=world.now.minute + 5)
    world.step(0, prices=PRICES)
    assert held(world) == pytest.approx((hours + 0.5, cost + PER_HOUR / 12))
    world.kubelet()
    world.step(3600, prices=PRICES)
    assert (world.status.gpus, world.status.cost_per_hour) == (0, None)
    after = held(world)
    world.step(prices=PRICES)
    assert held(world) == after


def test_gpus_that_a_runtime_gave_count_until_the_pods_are_over_too():
    """The spec of an ended job is read without its runtime, which had the number of GPUs."""
    named = {"kind": "ClusterRLHFRuntime", "metadata": {"name": "h100", "uid": "u", "generation": 1}}
    spec = {"trainer": {"pods": {"gpu": {"count": 4}}}}
    world = World(("spec.runtime={name: h100}", "spec.activeDeadlineSeconds=60", GPUS[0]))
    world.runtime = parse_runtime({"apiVersion": "rlhf.dev/v1alpha1", "spec": spec, **named})
    world.settle()
    world.trainer = TrainerStatus(activity="training", step=3, total_steps=4)
    world.step(120)
    world.runtime = None  # which the operator does not read for a job that has ended
    for _ in range(2):
        world.step(3600)
        assert (world.status.phase, world.status.gpus) == ("Failed", 4)
    world.kubelet()
    world.step()
    assert world.status.gpus == 0
    assert world.status.gpu_seconds / 3600 == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize(
    ("override", "gpus", "cost"),
    [
        ("spec.reward.pods.gpu={count: 2}", 2, 5.0),
        ("spec.reward.pods.resources={limits: {nvidia.com/gpu: 2}}", 2, 5.0),
        ("spec.reward.pods.gpu={count: 2, deviceClass: a.class}", 2, 6.0),
        ("spec.reward.pods.resources={limits: {nvidia.com/mig-1g.5gb: 2}}", 2, None),
        ("spec.reward.pods.resources={limits: {example.com/wafer: 2}}", 2, 2.0),
        ("spec.reward.pods.resources={limits: {example.com/nic: 2, cpu: 4}}", 0, None),
        (
            "spec.reward.pods.template={spec: {containers: [{name: role, resources: {limits: {amd.com/gpu: '2'}}}]}}",
            2,
            None,
        ),
        (
            "spec.reward.pods.template={spec: {"
            "initContainers: [{name: i, image: i, resources: {limits: {nvidia.com/gpu: 4}}}],"
            " containers: [{name: other, image: i, resources: {limits: {nvidia.com/gpu: 1}}},"
            " {name: role, resources: {limits: {nvidia.com/gpu: 2}}}]}}",
            4,
            10.0,
        ),
    ],
)
def test_gpus_count_however_the_pods_ask_for_them(override, gpus, cost):
    """From the pods as they are stored: also what a template or a webhook has put there."""
    world = running(override)
    world.step(3600, prices=PRICES | {"example.com/wafer": 1.0, "a.class": 3.0})
    world.step(0, prices=PRICES | {"example.com/wafer": 1.0, "a.class": 3.0})
    assert (world.status.gpus, world.status.cost_per_hour) == (gpus, cost)
    assert ((world.status.gpu_seconds or 0) / 3600) == pytest.approx(gpus, rel=0.01)


def test_without_prices_there_is_no_cost():
    world = running(*GPUS)
    world.step(3600)
    world.step()
    assert world.status.gpu_seconds > 6 * 3600
    assert (world.status.cost, world.status.cost_per_hour) == (None, None)
    assert cost_per_hour({"amd.com/gpu": 8}, PRICES) is None
    assert cost_per_hour({"amd.com/gpu": 8, "nvidia.com/mig": 3}, PRICES) == 1.5


def test_a_status_of_another_release_is_counted_from_now_on(world):
    world.status = world.status.model_copy(update={"usage_time": None, "gpu_seconds": None, "cost": None})
    world.step(3600, prices=PRICES)
    assert held(world) == (0, 0)
    world.step(0, prices=PRICES)
    assert held(world) == pytest.approx((6, PER_HOUR))


def test_a_job_without_gpus_has_neither():
    world = running()
    world.step(3600, prices=PRICES)
    world.step(prices=PRICES)
    assert (world.status.gpu_seconds, world.status.usage_time, world.status.cost_per_hour) == (
        None,
        None,
        None,
    )


def test_counting_alone_is_written_every_half_minute():
    before = {"phase": "Running", "gpuSeconds": 3600, "cost": 2.0, "usageTime": "2026-01-01T00:00:00Z"}
    now = before | {"gpuSeconds": 3960, "cost": 2.2, "usageTime": "2026-01-01T00:00:05Z"}
    assert not is_worth_writing(before, now, 5.0)
    assert is_worth_writing(before, now, 30.0)


CLAIM = {"results": [{"driver": "gpu.nvidia.com", "device": f"gpu-{i}"} for i in range(2)]}
CLAIM["results"] += [
    {"driver": "gpu.nvidia.com", "device": "gpu-0", "adminAccess": True},
    {"driver": "nic.example.com", "device": "rdma-0"},
]


@pytest.mark.parametrize(
    "error", [None, ApiError(403, "Forbidden", "no"), ApiError(0, "TimeoutError", "no answer")]
)
def test_devices_that_pods_claim_are_counted_by_their_allocation(error):
    """As a GPU's driver allocates them (resource.k8s.io/v1); who may not read claims goes on without."""
    names_read = list[str]()

    class Claims(Server):
        async def get(self, kind, namespace, name):
            if kind != "ResourceClaim":
                return await super().get(kind, namespace, name)
            names_read.append(name)
            if error:
                raise error
            return {"status": {"allocation": {"devices": CLAIM}}}

    async def scenario(story: Story) -> None:
        story.server.__class__ = Claims
        claims = "resourceClaims: [{name: own, resourceClaimTemplateName: t}, {name: all, resourceClaimName: shared}]"
        story.submit("first", f"spec.pods.template={{spec: {{{claims}}}}}")
        await story.reconcile()
        story.run()
        for pod in story.cache.pods(KEY):
            made = [{"name": "own", "resourceClaimName": f"{pod['metadata']['name']}-own"}]
            status = {**pod["status"], "resourceClaimStatuses": made}
            story.cache.put(story.server.stored({**pod, "status": status}))
        for _ in range(2):
            await story.reconcile()
        names = [f"job-{role}-0-own" for role in ("generator", "reference", "reward", "trainer")] + ["shared"]
        assert sorted(names_read) == sorted(names * (2 if error and error.status == 0 else 1))
        assert story.server.status["gpus"] == (0 if error else 5 * 2)

    tell(scenario)
