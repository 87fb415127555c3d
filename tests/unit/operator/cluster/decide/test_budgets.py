"""Restart budgets on a cluster, which an operator remembers in the status alone."""

import datetime

import pytest
from tests.unit.operator.cluster.world import World, reasons, running, stamp

from rlhf_api.roles import Role
from rlhf_operator.job.snapshot import Pod
from rlhf_operator.job.trimmed import trim

EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "node was low on memory"}


def until_made(world: World, name: str) -> float:
    """Seconds until the pod is made again."""
    before, began = world.made.count(name), world.now
    while world.made.count(name) == before:
        world.step(1)
        for other in [n for n, body in world.pods.items() if "deletionTimestamp" in body["metadata"]]:
            del world.pods[other]
        assert world.now < began + datetime.timedelta(hours=1)
    world.kubelet()
    return (world.now - began).total_seconds()


@pytest.mark.parametrize("window", [3600, 10])
def test_evictions_without_end_are_followed_by_longer_and_longer_pauses(window):
    """However soon failures are forgiven."""
    for role in ("trainer", "generator"):
        name, world = f"job-{role}-0", running(f"spec.{role}.backoffWindowSeconds={window}")
        pauses = []
        for _ in range(12):
            world.pods[name]["status"] = {**EVICTED, "startTime": world.now.strftime("%Y-%m-%dT%H:%M:%SZ")}
            pauses.append(until_made(world, name))
        assert pauses == sorted(pauses)
        assert pauses[0] <= 4
        assert pauses[-1] >= 300
        assert world.status.restarts == 0
        assert world.status.phase in ("Running", "Provisioning")


@pytest.mark.parametrize(
    "reason",
    ["OutOfnvidia.com/gpu", "NodeAffinity", "NodePorts", "TopologyAffinityError", "UnexpectedAdmissionError"],
)
def test_a_pod_that_its_kubelet_does_not_admit_is_replaced_and_not_counted(reason):
    world = running()
    refused = {"phase": "Failed", "reason": reason, "message": "Pod was rejected"}
    world.pods["job-generator-0"]["status"] = refused | {"startTime": stamp(world.now)}
    world.settle()
    assert world.made.count("job-generator-0") == 2
    assert world.runs("job-generator-0")
    assert world.status.restarts == 0


def test_one_generator_that_fails_while_the_others_load_their_models_fails_no_job():
    world = World(("spec.generator.replicas=8",))
    world.step()
    world.kubelet()
    for index in {*range(8)} - {3}:
        world.pods[f"job-generator-{index}"]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    for _ in range(4):
        world.end("job-generator-3")
        until_made(world, "job-generator-3")
    assert world.status.restarts == 4
    assert world.status.phase == "Provisioning"


def test_trainers_that_vanish_again_and_again_wait_longer_too():
    world = running()
    pauses = []
    for _ in range(12):
        del world.pods["job-trainer-0"]
        pauses.append(until_made(world, "job-trainer-0"))
    assert pauses[-1] >= 250
    assert world.status.restarts == 0


def test_failures_of_long_ago_are_forgiven():
    world = running("spec.reward.backoffLimit=2", "spec.reward.backoffWindowSeconds=1000")
    for _ in range(10):
        world.end("job-reward-0", 1)
        world.settle()
        world.now += datetime.timedelta(seconds=600)
    assert world.status.phase == "Running"
    assert world.status.restarts == 10
    for _ in range(3):
        world.end("job-reward-0", 1)
        world.settle()
    assert world.status.phase == "Failed"
    assert "started again 2 of 2 times within 1000 s" in world.status.message


def test_one_generator_of_many_does_not_fail_the_job():
    world = running("spec.generator.replicas=8", "spec.generator.backoffLimit=2")
    for _ in range(6):
        world.end("job-generator-3", 1)
        until_made(world, "job-generator-3")
    assert world.status.phase == "Running"
    assert world.status.roles[Role.GENERATOR].restarts == 6


def test_all_generators_that_fail_do():
    world = running("spec.generator.replicas=2", "spec.generator.backoffLimit=2")
    for _ in range(2):
        for index in (0, 1):
            world.end(f"job-generator-{index}", 1)
        for _ in range(20):
            world.step(1)
            for name in [n for n, body in world.pods.items() if "deletionTimestamp" in body["metadata"]]:
                del world.pods[name]
            for name, body in world.pods.items():
                if body["status"]["phase"] == "Pending":
                    world.run(name)
    assert world.status.phase == "Failed"
    assert reasons(world)["Failed"] == "BackoffLimitExceeded"


def test_a_rule_goes_by_kubernetes_own_reason():
    fail = "spec.trainer.failureRules=[{action: FailJob, reasons: [OOMKilled]}]"
    ignore = "spec.trainer.failureRules=[{action: Ignore, reasons: [OOMKilled]}]"
    for rule, phase in ((fail, "Failed"), (ignore, "Running")):
        world = running(rule, "spec.trainer.backoffLimit=0")
        world.end("job-trainer-0", 137)
        status = world.pods["job-trainer-0"]["status"]
        status["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
        world.settle()
        assert world.status.phase == phase
        assert world.status.restarts == 0
    world = running("spec.reward.failureRules=[{action: Count, reasons: [Evicted]}]")
    world.pods["job-reward-0"]["status"] = EVICTED
    world.settle()
    assert world.status.restarts == 1


@pytest.mark.parametrize(
    "message",
    [
        'Usage of EmptyDir volume "cache" exceeds the limit "10Gi". ',
        "Pod ephemeral local storage usage exceeds the total limit of containers 5Gi. ",
        'Container role exceeded its local ephemeral storage limit "5Gi". ',
    ],
)
def test_a_pod_that_is_evicted_for_what_it_wrote_itself_is_a_failure_and_says_so(message):
    """Kubelets call that an eviction too, and the pods after it would fill their disks as well, without end."""
    world = running("spec.reward.backoffLimit=1")
    for _ in range(2):
        world.end("job-reward-0", 137)
        world.pods["job-reward-0"]["status"] |= {"reason": "Evicted", "message": message}
        world.settle()
    assert world.status.phase == "Failed"
    expected = f"reward-0 was ended by SIGKILL (Evicted: {message.strip()})"
    assert world.status.message.startswith(expected)
    assert "DiskFull; started again 1 of 1 times" in world.status.message


def test_a_node_whose_clock_is_ahead_delays_no_start():
    """By the kubelet's clock the pod ended an hour from now."""
    world = running()
    for name in ("job-reward-0", "job-trainer-0"):
        now, world.now = world.now, world.now + datetime.timedelta(hours=1)
        world.end(name, 1)
        world.now = now
        assert until_made(world, name) <= 10


def test_a_trainer_that_fails_before_its_first_checkpoint_is_started_again():
    world = World()
    world.settle()
    world.end("job-trainer-0", 1)
    world.settle()
    assert world.attempts() == {"2"}
    assert world.status.restarts == 1


def test_a_trainer_that_died_before_it_was_deleted_for_its_peers_sake_counts():
    """Its peer fails because of it and is reported first, so the operator deletes the gang before it has seen the first
    death."""
    world = running("spec.trainer.replicas=2")
    died = world.now
    world.now += datetime.timedelta(seconds=2)
    world.end("job-trainer-0", 1, "Connection closed by peer")
    world.step(1)
    assert "deletionTimestamp" in world.pods["job-trainer-1"]["metadata"]
    now, world.now = world.now, died
    world.end("job-trainer-1", 137)
    world.now = now
    world.settle()
    assert world.status.restarts == 1
    assert ("PodFailed", "trainer-0") in [
        (reason, message.partition(" ")[0]) for reason, message in world.events
    ]


def test_a_deleted_trainer_that_nobody_found_any_more_is_not_the_first_that_failed():
    """The kubelet reports `ContainerStatusUnknown`, without a time."""
    world = running("spec.trainer.replicas=2")
    world.end("job-trainer-0", 1, "Connection closed by peer")
    world.step(1)
    world.end("job-trainer-1", 137)
    end = world.pods["job-trainer-1"]["status"]["containerStatuses"][0]["state"]["terminated"]
    end |= {"finishedAt": None, "reason": "ContainerStatusUnknown"}
    world.settle()
    assert world.status.restarts == 1


@pytest.mark.parametrize(("ended", "disrupted"), [(2, False), (3, True), (9, True)])
def test_an_end_is_a_disruption_where_the_pod_was_told_to_end_before(ended: int, disrupted: bool):
    world = running()
    deletion, body = world.now + datetime.timedelta(seconds=3), world.pods["job-trainer-0"]
    world.now += datetime.timedelta(seconds=ended)
    world.end("job-trainer-0", 1)
    body["metadata"] |= {
        "deletionTimestamp": stamp(deletion + datetime.timedelta(seconds=30)),
        "deletionGracePeriodSeconds": 30,
    }
    assert Pod.of(trim(body)).ended.disrupted is disrupted
