"""Generators of several pods each: made, counted, drained and started again as wholes."""

from collections import Counter

import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.world import TODAY, F, R, T, World, names, reasons, running

from rlhf_api.estimate.resources import plan as resource_plan
from rlhf_api.roles import Role
from rlhf_operator.cluster.decide.consequences import KILL_SECONDS
from rlhf_operator.cluster.decide.pod_groups import group_pods, membership
from rlhf_operator.cluster.decide.usage import count_gpus
from rlhf_operator.cluster.objects.gangs import members as gang_members
from rlhf_operator.cluster.objects.kueue import workload
from rlhf_operator.cluster.objects.pinned import Pinned
from rlhf_operator.cluster.objects.placement import placed
from rlhf_operator.cluster.objects.pod import NewPod, build_pod
from rlhf_operator.cluster.objects.pod_sets import PodSet
from rlhf_operator.job.names import RANK
from rlhf_operator.job.snapshot import Pod, is_marked
from rlhf_operator.job.trimmed import trim

G = Role.GENERATOR
PAIRS = ("spec.generator={replicas: 2, tensorParallelSize: 2, podsPerReplica: 2}",)
HEADS, SECOND = ("job-generator-0", "job-generator-1"), ("job-generator-1", "job-generator-1-1")
GPUS = ("spec.generator.tensorParallelSize=16", "spec.generator.pods.gpu={count: 8, memoryGigabytes: 80}")
HOST_NETWORK = "spec.pods.template={spec: {hostNetwork: true}}"


def pod(index: int, rank: int, *overrides: str):
    made = Pinned.make("job", job(*PAIRS, *overrides).spec, TODAY)
    return build_pod(made, NewPod(G, index, attempt=1, resume=False, rank=rank), "u")


def container(body):
    return body["spec"]["containers"][0]


def environment(body) -> dict[str, str]:
    return {e["name"]: e.get("value") for e in container(body)["env"]}


def members(world: World) -> dict[str, bool]:
    """Generators that the trainer is told of, and whether they are to end."""
    pods = [Pod.of(trim(body)) for body in world.pods.values()]
    served = membership(group_pods(world.want.spec, world.status.cluster, pods), world.want.spec).members
    return {member.name: member.draining for member in served if member.role is G}


def of_generators(pods) -> list[str]:
    return sorted(name for name in pods if "generator" in name)


def test_a_generator_is_two_pods_of_which_the_first_serves_and_is_counted():
    world = running(*PAIRS)
    assert of_generators(world.made) == ["job-generator-0", "job-generator-0-1", *SECOND]
    assert members(world) == {"generator-0": False, "generator-1": False}
    assert (world.status.roles[Role.GENERATOR].ready, world.status.generator_replicas) == (2, 2)
    assert world.status.selector.endswith("rlhf.dev/role=generator,rlhf.dev/rank=0")


def test_the_first_pod_has_the_http_and_the_second_finds_it():
    first, second = pod(1, 0), pod(1, 1)
    assert [body["metadata"]["name"] for body in (first, second)] == list(SECOND)
    assert [body["metadata"]["labels"][RANK] for body in (first, second)] == ["0", "1"]
    assert all(is_marked(body, "job") for body in (first, second))
    assert {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"} <= container(first).keys()
    assert not {"startupProbe", "readinessProbe", "livenessProbe", "lifecycle"} & container(second).keys()
    assert container(second)["ports"] == []
    assert environment(first)["RLHF_MASTER"] == "$(RLHF_HOST):29500"
    assert environment(second)["RLHF_MASTER"] == "job-generator-1.job-rlhf:29500"
    assert environment(second)["RLHF_PORT"] == environment(first)["RLHF_PORT"]
    assert [environment(body)["RLHF_RANK"] for body in (first, second)] == ["0", "1"]
    order = [each["name"] for each in container(first)["env"]]
    assert order.index("RLHF_HOST") < order.index("RLHF_MASTER"), (
        "whose value the kubelet puts into the other's"
    )
    assert RANK not in build_pod_of_one()["metadata"]["labels"]


def build_pod_of_one():
    made = Pinned.make("job", job().spec, TODAY)
    return build_pod(made, NewPod(G, 0, attempt=1, resume=False), "u")


def test_on_the_nodes_network_each_generator_has_a_port_to_meet_at():
    first, other = (container(pod(index, 0, HOST_NETWORK))["ports"] for index in (0, 1))
    all_ports = [port["containerPort"] for ports in (first, other) for port in ports]
    assert len(set(all_ports)) == 4
    meeting = next(port["containerPort"] for port in first if port["name"] == "rendezvous")
    assert environment(pod(0, 1, HOST_NETWORK))["RLHF_MASTER"] == f"job-generator-0.job-rlhf:{meeting}"
    assert container(pod(0, 1, HOST_NETWORK))["ports"] == []


@pytest.mark.parametrize("name", SECOND)
def test_whichever_pod_fails_the_whole_generator_is_started_again_and_counted_once(name):
    world = running(*PAIRS)
    peer = next(other for other in SECOND if other != name)
    world.end(name, 70, "RuntimeError: out of luck")
    todo = world.step()
    assert names(todo) == ([], [peer])
    assert [deletion.grace for deletion in todo.delete] == [KILL_SECONDS], (
        "what it was asked cannot be finished"
    )
    assert members(world).get("generator-1", True), "the trainer asks it for nothing more"
    assert not members(world)["generator-0"]
    world.settle()
    made = Counter(of_generators(world.made))
    assert made == {"job-generator-0": 1, "job-generator-0-1": 1, **dict.fromkeys(SECOND, 2)}
    assert world.status.roles[G].restarts == 1
    failed = [message for reason, message in world.events if reason == "PodFailed"]
    assert any("exited with code 70: RuntimeError: out of luck" in message for message in failed)


def test_the_cause_is_the_first_end_though_the_engine_told_of_its_own_within_the_second():
    world = running(*PAIRS, "spec.generator.replicas=1", "spec.generator.backoffLimit=0")
    world.end("job-generator-0", 70, "RuntimeError: Connection closed by peer")
    world.end("job-generator-0-1", 137, "CUDA out of memory")
    world.settle()
    assert world.status.phase == "Failed"
    assert "generator-0-1 was ended by SIGKILL: CUDA out of memory" in world.status.message


def test_neither_pod_is_made_again_before_both_are_gone():
    world = running(*PAIRS)
    world.end("job-generator-1-1", 70)
    while not (todo := world.step()).create:
        body = world.pods.get("job-generator-1", {"metadata": {}})
        if "deletionTimestamp" in body["metadata"] and body["status"]["phase"] == "Running":
            world.end("job-generator-1", 143)
        elif "deletionTimestamp" in body["metadata"]:
            del world.pods["job-generator-1"]
            assert not world.step().create
            del world.pods["job-generator-1-1"]
    assert names(todo)[0] == list(SECOND)
    assert world.status.roles[G].restarts == 1


@pytest.mark.parametrize("name", SECOND)
def test_a_pod_that_is_taken_away_takes_the_other_with_it_and_is_not_counted(name):
    world = running(*PAIRS)
    del world.pods[name]
    world.settle()
    assert Counter(world.made)[SECOND[0]] == Counter(world.made)[SECOND[1]] == 2
    assert world.status.roles[G].restarts == 0


def test_an_eviction_of_one_lets_the_generator_finish_and_is_not_counted():
    world = running(*PAIRS)
    world.pods["job-generator-1-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:00Z"
    todo = world.step()
    assert [(d.name, d.grace) for d in todo.delete] == [("job-generator-1", None)], (
        "with all of its own grace"
    )
    assert members(world) == {"generator-0": False, "generator-1": True}
    world.settle()
    assert all(world.runs(name) for name in SECOND)
    assert world.status.roles[G].restarts == 0


def test_a_pod_that_could_not_be_made_at_first_comes_to_the_one_that_waits_for_it():
    world = World(PAIRS)
    world.carry_out(world.make_plan())
    del world.pods["job-generator-0-1"]
    body = world.pods["job-generator-0"]
    todo = world.step()
    assert names(todo) == (["job-generator-0-1"], [])
    assert world.pods["job-generator-0"] is body


def test_whole_generators_come_and_go():
    world = running(*PAIRS)
    world.overrides = (*PAIRS, "spec.generator.replicas=1")
    assert sorted(names(world.step())[1]) == list(SECOND)
    world.settle()
    assert of_generators(world.pods) == ["job-generator-0", "job-generator-0-1"]
    world.overrides = PAIRS
    assert names(world.step())[0] == list(SECOND)


def test_all_pods_count_for_gpus_gangs_and_queues():
    spec = job(*PAIRS, *GPUS).spec
    planned = resource_plan(spec)[G]
    assert (planned.pods, planned.gpus) == (4, 32)
    made = Pinned.make("job", spec, TODAY)
    assert gang_members(made.config, ()) == {T: 1, G: 4, R: 1, F: 1}
    world = running(*PAIRS, *GPUS)
    assert count_gpus([Pod.of(trim(body)) for body in world.pods.values()], spec, {})["nvidia.com/gpu"] == 32
    scaled = Pinned.make("job", job(*PAIRS, "spec.generator.autoscale={maxReplicas: 5}").spec, TODAY)
    for pinned, count in ((made, 4), (scaled, 10)):
        pod_sets = {each["name"]: each["count"] for each in workload(world.job, pinned)["spec"]["podSets"]}
        assert pod_sets["generator"] == count


def test_a_trainer_that_starts_again_waits_for_no_generator_without_a_node():
    world = running("spec.scheduling.gang=volcano", "spec.generator.replicas=2")

    def gang() -> int:
        pods = [Pod.of(trim(body)) for body in world.pods.values()]
        return sum(gang_members(world.want.pinned.config, pods).values())

    assert gang() == len(world.pods) == 5
    world.overrides = ("spec.scheduling.gang=volcano", "spec.generator.replicas=9")
    world.step()
    assert (len(world.pods), gang()) == (12, 5)
    world.end("job-trainer-0", 1)
    world.step()
    assert gang() == 5
    del world.pods["job-generator-0"]
    assert gang() == 4, "it may never come back"
    world.pods.clear()
    assert gang() == 12, "all at once, or none"


def test_generators_of_many_pods_do_not_become_many_by_a_spec_that_has_few_pods_each():
    """A running generator keeps its number of pods: an operator that made a million pods would serve nobody."""
    world = running("spec.generator={replicas: 2, tensorParallelSize: 400, podsPerReplica: 400}")
    world.overrides = ("spec.generator.replicas=1000",)
    todo = world.step()
    assert not todo.create
    assert reasons(world)["SpecChanged"] == "NotApplied"
    world.overrides = ("spec.generator={replicas: 1, tensorParallelSize: 400, podsPerReplica: 400}",)
    assert len(world.step().delete) == 400


def test_each_generator_asks_kueue_for_a_domain_of_its_own():
    """A level for all pods of the role would let a generator's pods be apart on smaller levels, and the whole role has
    to fit; the slice of each is its pods, whatever level the role asks for besides."""
    sliced = "kueue.x-k8s.io/podset-slice-required-topology: rack"
    template = "spec.generator.pods.template={metadata: {annotations: {%s}}}"
    expected = {
        "podSetSliceRequiredTopology": "rack",
        "podSetSliceSize": 2,
        "podIndexLabel": "rlhf.dev/rank",
        "subGroupIndexLabel": "rlhf.dev/index",
        "subGroupCount": 2,
    }
    block = f"{sliced}, kueue.x-k8s.io/podset-required-topology: block"
    for annotations, level in ((sliced, {}), (block, {"required": "block"})):
        made = Pinned.make("job", job(*PAIRS, template % annotations).spec, TODAY)
        pod_sets = {each["name"]: each for each in workload(World().job, made)["spec"]["podSets"]}
        assert pod_sets["generator"]["topologyRequest"] == level | expected


def test_kueue_counts_the_pods_of_a_generator_side_by_side():
    template = "spec.generator.pods.template={metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}}"
    made = Pinned.make("job", job(*PAIRS, template).spec, TODAY)
    pod_sets = {each["name"]: each for each in workload(World().job, made)["spec"]["podSets"]}
    assert pod_sets["generator"]["topologyRequest"] == {
        "required": "rack",
        "podIndexLabel": "rlhf.dev/rank",
        "subGroupIndexLabel": "rlhf.dev/index",
        "subGroupCount": 2,
    }
    slices = [
        {
            "domainCount": 2,
            "valuesPerLevel": [{"individual": {"roots": ["r1", "r2"]}}],
            "podCounts": {"universal": 2},
        }
    ]
    assigned = {"name": "generator", "topologyAssignment": {"levels": ["rack"], "slices": slices}}
    admitted = {"metadata": {"name": "job"}, "status": {"admission": {"podSetAssignments": [assigned]}}}
    racks = [
        placed(pod(index, rank), PodSet("generator", G, 0, 2), admitted, {}, size=2)["spec"]["nodeSelector"][
            "rack"
        ]
        for index in range(2)
        for rank in range(2)
    ]
    assert racks == ["r1", "r1", "r2", "r2"]
