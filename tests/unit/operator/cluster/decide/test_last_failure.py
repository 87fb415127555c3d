"""The last log lines of a failed process: kept in the status after its pod is gone, with secrets redacted."""

import datetime

import pytest
from tests.unit.operator.cluster.world import Role, World, running

from rlhf_operator.cluster.objects.node_avoidance import AVOID_SECONDS
from rlhf_operator.job.snapshot import Pod
from rlhf_operator.job.trimmed import trim

TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in step\nRuntimeError: the bottom'


def last_failure(world: World, role: str) -> tuple[str, str] | None:
    failure = world.status.roles[Role(role)].last_failure
    return (failure.process, failure.log) if failure else None


def test_the_last_lines_of_a_replaced_pod_are_kept():
    world = running()
    world.end("job-generator-0", 1, f"{TRACE}\n")
    world.settle()
    assert world.runs("job-generator-0")
    assert last_failure(world, "generator") == ("generator-0", TRACE)
    failure = world.status.roles[Role.GENERATOR].last_failure
    assert failure.reason.startswith("exited with code 1: RuntimeError: the bottom; see ")
    world.end("job-generator-0", 137, "MemoryError")
    world.step()
    assert last_failure(world, "generator") == ("generator-0", "MemoryError")


@pytest.mark.parametrize("later", [0, 1])
def test_of_a_gang_it_is_the_first_end_that_is_kept(later):
    """Also where others follow within the second, which is all that a cluster tells."""
    world = running("spec.trainer.replicas=2")
    world.end("job-trainer-1", 1, TRACE)
    world.now += datetime.timedelta(seconds=later)
    world.end("job-trainer-0", 1, "RankLost: another rank of the trainer is gone")
    world.settle()
    assert world.attempts() == {"2"}
    assert last_failure(world, "trainer") == ("trainer-1", TRACE)
    world.end("job-trainer-0", 0)
    world.end("job-trainer-1", 0)
    world.settle()
    assert (world.status.phase, last_failure(world, "trainer")) == ("Succeeded", ("trainer-1", TRACE))


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


def avoided(world: World, name: str) -> list[str]:
    """Nodes that the pod would rather not have."""
    affinity = world.pods[name]["spec"].get("affinity", {}).get("nodeAffinity", {})
    preferred = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", [])
    fields = [field for each in preferred for field in each["preference"]["matchFields"]]
    assert all((field["key"], field["operator"]) == ("metadata.name", "NotIn") for field in fields)
    return [node for field in fields for node in field["values"]]


@pytest.mark.parametrize("reason", [ECC, "RuntimeError: NCCL error: unhandled system error", TRACE])
def test_a_gang_prefers_other_nodes_than_that_of_a_broken_gpu(reason):
    """For an hour. The scheduler would else choose the node that has just become free."""
    world = running("spec.trainer.replicas=2", "spec.pods.template={spec: {affinity: {podAntiAffinity: {}}}}")
    world.end("job-trainer-1", 1, reason)
    world.end("job-trainer-0", 1, "RankLost: another rank of the trainer is gone")
    world.settle()
    avoided_nodes = [] if reason == TRACE else ["node-1"]
    assert [avoided(world, f"job-trainer-{rank}") for rank in (0, 1)] == [avoided_nodes, avoided_nodes]
    assert "podAntiAffinity" in world.pods["job-trainer-0"]["spec"]["affinity"]
    messages = [message for reason, message in world.events if reason == "NodeAvoided"]
    assert all(f"than node-1 (trainer-1: exited with code 1: {reason}" in message for message in messages)
    assert bool(messages) == bool(avoided_nodes)
    world.now += datetime.timedelta(seconds=AVOID_SECONDS)
    world.end("job-generator-0", 1, TRACE)
    world.settle()
    assert avoided(world, "job-generator-0") == []


LOST = "RuntimeError: Worker failed with error '[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer'"
KILLED = "vLLM's process Worker-1 (pid 7) was ended by SIGKILL"


@pytest.mark.parametrize(
    ("code", "message", "named"),
    [
        (70, KILLED, "generator-0-1"),
        (143, "some last line", "generator-0"),
        (137, "some last line", "generator-0"),
        (0, "some last line", "generator-0"),
        (70, LOST, "generator-0"),
        (70, "", "generator-0"),
    ],
)
def test_a_cause_that_is_reported_later_takes_the_place_of_what_followed_from_it(code, message, named):
    """A busy kubelet reports the end of a peer first, and both pods are told to end then."""
    pods = ("spec.generator.podsPerReplica=2", "spec.generator.tensorParallelSize=2")
    world = running(*pods, "spec.generator.replicas=2")
    world.end("job-generator-0", 70, LOST)
    world.step()
    assert last_failure(world, "generator") == ("generator-0", LOST)
    world.end("job-generator-0-1", code, message)
    world.step()
    assert last_failure(world, "generator") == (named, KILLED if named == "generator-0-1" else LOST)
    world.settle()
    assert world.runs("job-generator-0-1")
    assert last_failure(world, "generator")[0] == named
    assert world.status.roles[Role.GENERATOR].restarts == 1


def test_a_cause_is_known_also_if_its_pod_is_gone_before_the_next_look():
    world = running("spec.generator.podsPerReplica=2", "spec.generator.tensorParallelSize=2")
    world.end("job-generator-0", 70, LOST)
    world.step()
    world.end("job-generator-0-1", 70, KILLED)
    deleted = Pod.of(trim(world.pods.pop("job-generator-0-1")))
    world.step(deleted_pods=[deleted])
    assert last_failure(world, "generator") == ("generator-0-1", KILLED)
    world.settle()
    assert last_failure(world, "generator") == ("generator-0-1", KILLED)
    assert world.status.roles[Role.GENERATOR].restarts == 1


def test_an_end_that_is_no_failure_takes_nothing_s_place():
    world = running()
    world.end("job-generator-0", 1, TRACE)
    world.settle()
    world.end("job-generator-0", 137, "was on a node that is gone", reason="Evicted")
    world.settle()
    del world.pods["job-generator-0"]
    world.settle()
    assert last_failure(world, "generator") == ("generator-0", TRACE)


def test_it_is_written_once_and_bounded():
    world = running("spec.trainer.backoffLimit=0")
    world.end("job-trainer-0", 1, "x" * 50 + "\n" + "y" * 3950 + "\nRuntimeError: last")
    world.step()
    failure = world.status.roles[Role.TRAINER].last_failure
    assert len(failure.log) == 2048
    assert failure.log.endswith("RuntimeError: last")
    world.step(60)
    assert world.status.roles[Role.TRAINER].last_failure == failure


def test_neither_reason_nor_last_lines_have_secrets():
    world = running()
    world.end("job-generator-0", 1, "RuntimeError: 401 for https://u:pa55word@h.example")
    world.step()
    assert "pa55word" not in world.status.model_dump_json()
    world.settle()
    assert not any("pa55word" in message for _, message in world.events)
