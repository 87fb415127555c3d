"""A pod that the processes of all roles share: each is counted by itself, and its kubelet starts it again."""

import pytest
from tests.unit.api.manifests import job
from tests.unit.operator.cluster.world import World, running, stamp

from rlhf_api.contract.run import EXIT_INVALID
from rlhf_api.roles import Role
from rlhf_operator.cluster.decide.next_step import Plan

POD = "job-trainer-0"
SHARED = ("spec.placement=shared", "spec.generator.engineArguments={max-num-seqs: 8}")


@pytest.fixture
def world() -> World:
    return running(*SHARED)


def settled(world: World) -> Plan:
    """The plan once what has happened is counted; it makes and deletes nothing on the way."""
    for _ in range(20):
        todo = world.step()
        assert not todo.create
        assert not todo.delete
    return todo


def counts(world: World) -> dict[str, int]:
    assert world.status is not None
    return {role.value: status.restarts for role, status in world.status.roles.items()}


def test_all_roles_are_one_pod_with_a_container_each(world):
    assert list(world.pods) == [POD]
    assert world.containers(POD) == ["role", "generator-0", "reward-0", "reference-0"]
    assert world.status.phase == "Running"
    assert all(role.ready for role in world.status.roles.values())
    assert world.status.generator_replicas == 1


def test_an_engine_that_fails_is_counted_and_leaves_the_trainer_alone(world):
    (before,) = [m for m in world.step().members.members if m.role is Role.GENERATOR]
    world.crash(POD, "generator-0", 137, "the last line")
    world.step()
    assert not world.status.roles[Role.GENERATOR].ready
    assert world.status.roles[Role.TRAINER].ready
    world.restart(POD, "generator-0")
    (after,) = [m for m in settled(world).members.members if m.role is Role.GENERATOR]
    assert (before.name, before.address) == (after.name, after.address)
    assert before.uid != after.uid
    assert counts(world) == {"trainer": 0, "generator": 1, "reward": 0, "reference": 0}
    assert "SIGKILL" in world.status.roles[Role.GENERATOR].last_failure.reason
    assert (
        f"kubectl logs {POD} -c generator-0 --previous"
        in world.status.roles[Role.GENERATOR].last_failure.reason
    )
    assert world.status.cluster.attempt == 1


def test_a_start_between_two_looks_is_counted_too(world):
    world.crash(POD, "reward-0")
    world.restart(POD, "reward-0")
    settled(world)
    assert counts(world)["reward"] == 1


def test_a_trainer_that_fails_starts_again_beside_its_engine(world):
    world.crash(POD, "role", 1)
    world.restart(POD, "role")
    settled(world)
    assert counts(world) == {"trainer": 1, "generator": 0, "reward": 0, "reference": 0}
    assert world.status.phase == "Running"
    assert world.made == [POD]


def test_each_failure_counts_once_however_often_it_is_looked_at(world):
    for number in range(3):
        world.crash(POD, "generator-0")
        settled(world)
        world.restart(POD, "generator-0")
        settled(world)
        assert counts(world)["generator"] == number + 1


def test_the_end_of_the_trainer_ends_the_pod_and_keeps_it_for_its_logs(world):
    end = {"exitCode": 0, "finishedAt": "2026-01-01T01:00:00Z"}
    world.container_status(POD, "role")["state"] = {"terminated": end}
    todo = world.step()
    assert world.status.phase == "Succeeded"
    assert [each.stays for each in todo.delete] == [True]
    assert [each.stays for each in world.step().delete] == [True], (
        "an operator may have died before it was done"
    )
    world.pods[POD]["status"]["phase"] = "Failed"
    assert world.step().delete == ()
    assert POD in world.pods


def test_a_trainer_that_cannot_run_this_job_ends_it(world):
    world.crash(POD, "role", EXIT_INVALID, "spec.steps: no")
    todo = world.step()
    assert (world.status.phase, [each.stays for each in todo.delete]) == ("Failed", [True])


def test_a_budget_that_is_used_up_ends_the_job():
    world = running(*SHARED, "spec.generator.backoffLimit=0")
    world.crash(POD, "generator-0")
    world.step()
    assert world.status.phase == "Failed"
    assert world.ended_in_place == [POD]


def test_a_pod_that_is_gone_is_made_again_with_all_of_them(world):
    del world.pods[POD]
    world.settle()
    assert list(world.pods) == [POD]
    assert world.attempts() == {"2"}
    assert world.status.phase == "Running"


def test_an_evicted_pod_is_made_again(world):
    ends = [{"name": name, "state": {}} for name in world.containers(POD)]
    world.pods[POD]["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "containerStatuses": ends,
    }
    world.settle()
    assert world.attempts() == {"2"}
    assert counts(world) == {"trainer": 0, "generator": 0, "reward": 0, "reference": 0}


def test_a_trainer_that_hangs_is_its_kubelets_to_end_and_counts_alone(world):
    world.trainer = world.trainer.model_copy(update={"progress_count": 1})
    limit = job(*SHARED).spec.trainer.progress_deadline_seconds
    for _ in range(limit // 100 + 3):
        assert not world.step(100).delete
    world.crash(POD, "role", 137)
    world.restart(POD, "role")
    settled(world)
    assert counts(world) == {"trainer": 1, "generator": 0, "reward": 0, "reference": 0}
    assert world.made == [POD]


def test_a_trainer_that_hangs_and_that_its_kubelet_does_not_end_takes_its_pod_with_it(world):
    world.trainer = world.trainer.model_copy(update={"progress_count": 1})
    plans = (world.step(100) for _ in range(30))
    first = next(todo.delete for todo in plans if todo.delete)
    assert [(each.name, each.stays) for each in first] == [(POD, False)]
    assert counts(world) == {"trainer": 1, "generator": 0, "reward": 0, "reference": 0}


def test_what_was_counted_before_a_suspend_is_not_counted_when_the_job_is_resumed(world):
    """Though the pod of then is still there, with the ends of its containers' earlier starts."""
    for container in ("role", "generator-0"):
        world.crash(POD, container)
        world.restart(POD, container)
        settled(world)
    before = counts(world)
    resumed, world.overrides = world.overrides, (*world.overrides, "spec.suspend=true")
    world.step()
    world.crash(POD, "role", 79)
    world.step()
    for container in world.containers(POD):
        end = {"exitCode": 79, "finishedAt": "2026-01-01T01:00:00Z"}
        world.container_status(POD, container).update(ready=False, started=False, state={"terminated": end})
    world.step()
    assert world.status.phase == "Suspended"
    world.overrides = resumed
    world.step()
    assert world.status.phase == "Provisioning", (
        "the last report of the trainer of then says nothing of the next"
    )
    world.step()
    assert counts(world) == before == {"trainer": 1, "generator": 1, "reward": 0, "reference": 0}


def test_the_end_of_a_start_before_is_not_taken_for_that_of_one_whose_container_is_lost(world):
    """As kubelets show it that end a pod with a container which they had started again."""
    end = {"exitCode": 137, "finishedAt": stamp(world.now), "containerID": "containerd://first"}
    world.container_status(POD, "generator-0").update(
        containerID="containerd://first", state={"terminated": end}
    )
    settled(world)
    world.container_status(POD, "generator-0").update(
        containerID="containerd://second", lastState={"terminated": end}
    )
    world.restart(POD, "generator-0")
    settled(world)
    resumed, world.overrides = world.overrides, (*world.overrides, "spec.suspend=true")
    world.step()
    world.crash(POD, "role", 79)
    world.step()
    lost = world.container_status(POD, "generator-0")
    lost |= {"ready": False, "started": False, "state": {"waiting": {"reason": "ContainerCreating"}}}
    del lost["containerID"]
    for container in ("reward-0", "reference-0"):
        world.crash(POD, container, 143)
    world.step()
    assert world.status.phase == "Suspended"
    world.overrides = resumed
    world.step()
    assert counts(world)["generator"] == 1


def test_a_suspended_job_deletes_the_pod_once_its_trainer_has_saved(world):
    world.overrides += ("spec.suspend=true",)
    assert world.step().stop
    world.crash(POD, "role", 79)
    todo = world.step()
    assert [(each.name, each.stays) for each in todo.delete] == [(POD, False)]
    world.kubelet()
    world.step()
    assert world.status.phase == "Suspended"


def test_another_number_of_generators_waits_for_a_suspend(world):
    world.overrides += ("spec.generator.replicas=2",)
    todo = world.step()
    assert not todo.create
    (changed,) = [c for c in world.status.conditions if c.type == "SpecChanged"]
    assert "spec.generator changed while the job runs" in changed.message


def test_gpus_are_counted_once():
    world = running(*SHARED, "spec.pods.gpu={count: 1, deviceClass: gpu.nvidia.com}")
    assert world.status.gpus == 1
