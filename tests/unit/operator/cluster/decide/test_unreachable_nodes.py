"""A node that no longer reports is named by a condition while Kubernetes waits for it."""

import pytest
from tests.unit.operator.cluster.world import World, names, reasons, running

from rlhf_api.roles import Role

TWO = "spec.generator.replicas=2"
PAIR = "spec.generator={replicas: 1, tensorParallelSize: 2, podsPerReplica: 2}"
WHY = "NodeUnreachable: its node node-1 has stopped reporting"


def mark(world: World, name: str, ready: str = "False", containers: str = "True", **more: str) -> None:
    """As the node controller of Kubernetes does: of the two conditions it writes only one."""
    world.pods[name]["status"]["conditions"] = [
        {"type": "Ready", "status": ready, **more},
        {"type": "ContainersReady", "status": containers},
    ]


def condition_of(world: World, kind: str) -> tuple[str, str, str]:
    condition = next(c for c in world.status.conditions if c.type == kind)
    return condition.status, condition.reason, condition.message


@pytest.mark.parametrize("name", ["job-generator-0", "job-reward-0", "job-reference-0"])
def test_the_only_server_of_a_role_stalls_the_job_until_its_node_is_back(name):
    world = running()
    mark(world, name)
    assert names(world.step()) == ([], []), "Kubernetes decides for how long it waits"
    assert condition_of(world, "Stalled") == ("True", "NodeUnreachable", f"{name}: {WHY}")
    assert condition_of(world, "RolesReady")[:2] == ("False", "NodeUnreachable")
    assert f"{name}: {WHY}" in world.status.message
    assert ("PodsWaiting", f"{name}: {WHY}") in world.events
    mark(world, name, ready="True")
    world.step()
    assert condition_of(world, "Stalled")[0] == "False"
    assert condition_of(world, "RolesReady")[0] == "True"


def test_one_of_two_generators_stalls_nothing_and_the_condition_of_the_roles_names_it():
    world = running(TWO)
    mark(world, "job-generator-1")
    world.step()
    assert condition_of(world, "Stalled")[0] == "False"
    message = f"waiting for generator 1/2; job-generator-1: {WHY}"
    assert condition_of(world, "RolesReady") == ("False", "NodeUnreachable", message)
    assert condition_of(world, "Ready") == ("False", "Running", message)


@pytest.mark.parametrize("name", ["job-generator-0", "job-generator-0-1"])
def test_a_generator_of_two_pods_is_not_ready_while_either_node_is_silent(name):
    world = running(PAIR)
    mark(world, name)
    world.step()
    assert world.status.roles[Role.GENERATOR].ready == 0
    assert condition_of(world, "Stalled") == ("True", "NodeUnreachable", f"{name}: {WHY}")


@pytest.mark.parametrize(
    "conditions",
    [
        {"containers": "False", "reason": "ContainersNotReady"},
        {"reason": "ReadinessGatesNotReady"},
        {"ready": "True"},
    ],
    ids=["not ready", "a readiness gate", "ready"],
)
def test_what_a_kubelet_writes_is_no_silence_of_its_node(conditions):
    world = running()
    mark(world, "job-generator-0", **conditions)
    world.step()
    assert "NodeUnreachable" not in reasons(world).values()


def test_a_job_that_is_over_waits_for_no_node():
    world = running()
    mark(world, "job-generator-0")
    world.end("job-trainer-0", 0)
    world.step()
    assert world.status.phase == "Succeeded"
    assert condition_of(world, "RolesReady")[1] == "JobEnded"
