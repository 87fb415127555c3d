"""The operator's decisions: a job and its pods in; pods to create and to delete, and the status, out."""

import datetime

import pytest
from tests.unit.operator.cluster.world import World, names, reasons, running, stamp

from rlhf_api.contract.report import HealthStatus, TrainerStatus
from rlhf_api.contract.run import EXIT_INVALID
from rlhf_api.contract.status import JobStatus
from rlhf_api.roles import Role
from rlhf_operator.cluster.decide.pod_groups import LOST_SECONDS
from rlhf_operator.cluster.decide.stopping import SIDECAR_SECONDS, SUSPEND_SECONDS, plan_deleted_job
from rlhf_operator.job.snapshot import Pod
from rlhf_operator.supervision.process_state import Finish

TWO = "spec.trainer.replicas=2"


def status(world: World) -> JobStatus:
    assert world.status is not None
    return world.status


def test_a_new_job_gets_all_its_pods_at_once():
    world = World(("spec.generator.replicas=2",))
    todo = world.step()
    assert names(todo)[0] == [
        "job-trainer-0",
        "job-generator-0",
        "job-generator-1",
        "job-reward-0",
        "job-reference-0",
    ]
    assert {new.attempt for new in todo.create} == {1}
    assert not any(new.resume for new in todo.create)
    assert status(world).phase == "Provisioning"
    assert world.events == []  # the status says it


def test_a_start_is_two_statuses():
    """Each is an API call: one says what is about to be made, the other that the trainer is up."""
    world, statuses = World(), []
    for pods in ("come", "are ready", "stay", "stay"):
        world.step()
        if not statuses or statuses[-1] != status(world):
            statuses.append(status(world))
        if pods == "are ready":
            world.kubelet()
            world.trainer = TrainerStatus(activity="training", step=0, total_steps=4)
    assert [each.phase for each in statuses] == ["Provisioning", "Running"]
    assert statuses[0].cluster is not None
    assert statuses[0].cluster.provisioning_since == statuses[0].start_time


def test_pods_that_are_there_are_left_alone():
    world = running()
    for _ in range(3):
        assert names(world.step()) == ([], [])
    assert status(world).phase == "Running"
    assert (status(world).step, status(world).total_steps) == (3, 4)
    assert status(world).reward == 0.1235
    assert status(world).roles[Role.GENERATOR].ready == 1
    assert ("Running", "the trainer is running") in world.events


def test_a_restarted_operator_changes_nothing():
    """Nothing but what the API server holds goes into a plan; the trainer may not have been asked yet."""
    world = running()
    world.trainer = None
    assert names(world.step()) == ([], [])
    assert status(world).phase == "Running"
    assert status(world).step == 3


@pytest.mark.parametrize("name", ["job-generator-0", "job-reward-0", "job-reference-0"])
def test_a_server_that_fails_is_replaced_alone_and_counted_once(name):
    world = running()
    world.end(name, 1, "RuntimeError: out of luck")
    world.settle()
    assert world.made.count(name) == 2
    assert len(world.made) == 5
    assert status(world).restarts == 1
    failed = [message for reason, message in world.events if reason == "PodFailed"]
    assert failed == [
        f"{name.removeprefix('job-')} exited with code 1: RuntimeError: out of luck; see `kubectl logs {name}`"
    ]


def test_a_pause_before_a_restart_is_waited_for_and_no_longer():
    world = running()
    assert world.make_plan().due is None
    world.end("job-reward-0", 1)
    todo = world.make_plan()
    assert (names(todo), todo.due) == (([], []), 0.5)
    world.now += datetime.timedelta(seconds=0.5)
    assert names(world.make_plan()) == ([], ["job-reward-0"])


def test_a_server_whose_pod_is_deleted_is_replaced_and_not_counted():
    world = running()
    del world.pods["job-reward-0"]
    world.settle()
    assert world.runs("job-reward-0")
    assert status(world).restarts == 0


def test_the_budget_of_a_role_ends_the_job_with_the_reason():
    world = running("spec.reward.backoffLimit=1")
    world.end("job-reward-0", 1)
    world.settle()
    world.end("job-reward-0", 1)
    world.settle()
    assert status(world).phase == "Failed"
    assert reasons(world)["Failed"] == "BackoffLimitExceeded"
    assert set(world.pods) == {"job-reward-0"}  # kept for its log; the others are gone


def test_a_failed_trainer_restarts_the_gang_and_nothing_else():
    world = running(TWO)
    world.end("job-trainer-1", 1)
    world.settle()
    assert world.attempts() == {"2"}
    assert world.made.count("job-trainer-0") == world.made.count("job-trainer-1") == 2
    assert world.made.count("job-generator-0") == 1
    assert status(world).roles[next(iter(status(world).roles))].restarts == 1


def test_the_new_gang_resumes_and_starts_only_when_the_old_one_is_gone():
    world = running(TWO)
    world.end("job-trainer-0", 1)
    made: list[bool] = []
    for _ in range(10):
        todo = world.step()
        if todo.create:
            assert not world.attempts() - {"2"}
            made += [new.resume for new in todo.create]
        world.kubelet()
    assert made == [True, True]


def test_a_gang_whose_pod_is_taken_away_starts_again_without_being_counted():
    world = running(TWO)
    del world.pods["job-trainer-1"]
    world.settle()
    assert world.attempts() == {"2"}
    assert status(world).restarts == 0


def test_peers_killed_for_a_failure_do_not_hide_it():
    """The first failure counts, whatever happens to the other trainers after it."""
    world = running(TWO, "spec.trainer.backoffLimit=1")
    for _ in range(2):
        world.end("job-trainer-0", 1)
        world.settle()
    assert status(world).phase == "Failed"


def test_an_eviction_is_no_failure_of_the_role():
    world = running("spec.trainer.backoffLimit=0")
    world.pods["job-trainer-0"]["status"] = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "node was low on memory",
    }
    world.settle()
    assert world.attempts() == {"2"}
    assert status(world).phase == "Running"


@pytest.mark.parametrize(("code", "reason"), [(255, "Unknown"), (137, "ContainerStatusUnknown")])
def test_a_node_that_starts_again_is_no_failure_of_the_roles_that_were_on_it(code, reason):
    """Before its pods are deleted: what containerd, or else its kubelet, says of a container that it finds gone."""
    world = running("spec.trainer.backoffLimit=0")
    world.end("job-trainer-0", code)
    (container,) = world.pods["job-trainer-0"]["status"]["containerStatuses"]
    container["state"]["terminated"]["reason"] = reason
    world.settle()
    assert (world.attempts(), status(world).phase, status(world).restarts) == ({"2"}, "Running", 0)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "cpu", "pods"])
def test_a_race_for_a_node_is_no_failure_of_the_role(resource):
    """Two schedulers, or one that did not know of a device's fault yet, gave the same GPU away twice."""
    world = World(("spec.trainer.backoffLimit=0",))
    world.step()
    world.pods["job-trainer-0"]["status"] = {
        "phase": "Failed",
        "reason": f"OutOf{resource}",
        "message": "Node didn't have enough resource",
    }
    world.settle()
    assert world.attempts() == {"2"}
    assert status(world).phase == "Provisioning"


def test_a_sidecar_does_not_keep_the_pod_and_its_gpus_for_ever():
    world = running()
    world.end("job-trainer-0", 0, phase="Running")  # a mesh's proxy, say, still runs in it
    world.step(SIDECAR_SECONDS)
    world.kubelet()
    assert status(world).phase == "Succeeded"
    assert "job-trainer-0" not in names(world.make_plan())[1]
    assert world.make_plan(quota="admitted").queue == "report"
    world.step(1)
    assert names(world.step())[1] == ["job-trainer-0"]
    world.kubelet()
    assert not world.pods
    assert world.make_plan(quota="admitted").queue == "leave"


def test_a_trainer_stopped_by_its_node_goes_on_elsewhere():
    """On SIGTERM it saved a checkpoint and exited with 79, though nobody had suspended the job."""
    world = running("spec.trainer.backoffLimit=0")
    world.end("job-trainer-0", 79)
    world.settle()
    assert world.attempts() == {"2"}
    assert status(world).phase == "Running"


def test_a_rollback_is_an_event_a_condition_and_another_attempt():
    """The trainer ended with 80, a rule's code; its other data order is its own affair."""
    world = running("spec.trainer.backoffLimit=0")
    breach = {
        "step": 4,
        "since": 4,
        "reason": "MetricAbove",
        "action": "rollback",
        "message": "kl 2",
        "rollbacks": 1,
    }
    assert world.trainer is not None
    world.trainer = world.trainer.model_copy(update={"health": HealthStatus.model_validate(breach)})
    world.settle()
    world.step()
    assert world.events.count(("MetricAbove", "kl 2")) == 1
    assert reasons(world)["Healthy"] == "MetricAbove"
    world.end("job-trainer-0", 80, "kl 2")
    world.settle()
    assert world.attempts() == {"2"}
    assert status(world).restarts == 0
    world.end("job-trainer-0", 81, "spec.health.rules[0]: kl 2")
    world.settle()
    assert reasons(world)["Failed"] == "HealthRule"


def test_success_keeps_the_trainer_for_its_log_and_makes_nothing_again():
    world = running()
    world.end("job-trainer-0", 0)
    world.settle()
    assert status(world).phase == "Succeeded"
    assert (status(world).step, status(world).total_steps) == (4, 4)
    assert status(world).completion_time is not None
    assert set(world.pods) == {"job-trainer-0"}
    world.pods.clear()
    assert names(world.step()) == ([], [])


def test_an_invalid_job_fails_at_once():
    world = running()
    world.end("job-reward-0", 78, "spec.model.reward: no such model")
    world.settle()
    assert status(world).phase == "Failed"
    assert reasons(world)["Failed"] == "InvalidConfiguration"
    assert "no such model" in status(world).message


def test_suspend_asks_for_a_checkpoint_while_the_others_still_serve():
    world = running()
    world.overrides += ("spec.suspend=true",)
    todo = world.step()
    assert todo.stop
    assert names(todo) == ([], [])
    assert status(world).phase == "Running"
    world.end("job-trainer-0", 79)
    world.settle()
    assert status(world).phase == "Suspended"
    assert not world.pods
    assert reasons(world)["Suspended"] == "Suspended"


def test_suspended_is_said_once_while_the_last_pods_go():
    world = running()
    world.overrides = ("spec.suspend=true",)
    world.step()
    for name in world.pods:
        world.end(name, 79)
    for _ in range(5):
        world.step()
    assert world.pods
    assert [reason for reason, _ in world.events].count("Suspended") == 1


def test_a_resumed_job_goes_on_as_a_new_attempt():
    world = running()
    world.overrides = ("spec.suspend=true",)
    world.step()
    world.end("job-trainer-0", 79)
    world.settle()
    world.trainer = None
    world.overrides = ()
    todo = world.step()
    assert {new.attempt for new in todo.create} == {2}
    assert next(new for new in todo.create if new.role == "trainer").resume
    assert ("Resumed", "resumed from step 3") in world.events
    world.settle()
    assert reasons(world)["Suspended"] == "NotSuspended"


def test_pods_that_end_because_they_are_deleted_are_no_failures():
    """A job that is resumed before the last of its pods is gone."""
    world = running()
    world.overrides = ("spec.suspend=true",)
    world.step()
    world.end("job-trainer-0", 79)
    world.step()
    for name in world.pods:
        if name != "job-trainer-0":
            assert "deletionTimestamp" in world.pods[name]["metadata"]
            world.end(name, 143)
    world.step()
    assert status(world).phase == "Suspended"
    world.overrides = ()
    world.trainer = None
    world.settle()
    assert status(world).restarts == 0
    assert status(world).reward == 0.1235  # until the resumed trainer has made a step
    assert len([name for name in world.pods if world.runs(name)]) == 4


def test_a_trainer_that_does_not_stop_in_time_is_taken_away():
    world = running()
    world.overrides = ("spec.suspend=true",)
    world.step(SUSPEND_SECONDS + 1)
    assert "job-trainer-0" in names(world.step())[1]


def test_a_job_suspended_from_the_start_makes_nothing():
    world = World(("spec.suspend=true",))
    assert names(world.step()) == ([], [])
    assert status(world).phase == "Suspended"


def test_a_job_that_waits_for_quota_says_so():
    world = World()
    assert world.step(quota="absent").queue == "enter"
    assert names(world.step(quota="waiting")) == ([], [])
    assert status(world).phase == "Suspended"
    assert reasons(world)["Suspended"] == "WaitingForQuota"


def test_a_job_has_no_start_time_before_it_starts_and_a_new_one_when_it_is_resumed():
    """As a Job of Kubernetes."""
    world = World()
    for quota in ("absent", "waiting"):
        world.step(60, quota=quota)
        assert status(world).start_time is None
    starts = stamp(world.now)
    for _ in range(3):
        world.step(60, quota="admitted")
        world.kubelet()
        assert status(world).start_time == starts
    world.end("job-trainer-0", 79)
    for _ in range(3):
        world.step(60, quota="waiting")
        world.kubelet()
    assert (status(world).phase, status(world).start_time) == ("Suspended", starts)
    starts = stamp(world.now)
    world.step(quota="admitted")
    assert status(world).start_time == starts


def test_an_admitted_job_runs_and_an_evicted_one_saves_itself_and_lines_up_anew():
    world = World()
    world.step(quota="absent")
    assert names(world.step(quota="admitted"))[0]
    for _ in range(3):
        world.kubelet()
        world.step(quota="admitted")
    assert world.step(quota="evicted").stop
    world.end("job-trainer-0", 79)
    for _ in range(3):
        todo = world.step(quota="evicted")
        world.kubelet()
    assert not world.pods
    assert todo.queue == "release"
    assert status(world).phase == "Suspended"


def test_quota_is_given_back_at_the_end():
    world = running()
    world.end("job-trainer-0", 0)
    world.settle()
    assert world.step(quota="admitted").queue == "leave"


def test_scaling_up_makes_the_missing_and_down_drains_the_last():
    world = running()
    world.overrides = ("spec.generator.replicas=3",)
    assert names(world.step())[0] == ["job-generator-1", "job-generator-2"]
    world.settle()
    assert status(world).generator_replicas == 3
    world.overrides = ()
    todo = world.step()
    assert sorted(names(todo)[1]) == ["job-generator-1", "job-generator-2"]
    draining = {m.name: m.draining for m in todo.members.members if m.role == "generator"}
    assert draining == {"generator-0": False, "generator-1": True, "generator-2": True}
    world.settle()
    assert status(world).roles[Role.GENERATOR].ready == 1


def test_a_deleted_generator_is_drained_while_it_lasts():
    world = running()
    world.pods["job-generator-0"]["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z"
    todo = world.step()
    assert names(todo) == ([], [])
    assert [m.draining for m in todo.members.members if m.role == "generator"] == [True]


def test_a_pod_whose_kubelet_is_gone_is_given_up():
    """A dead node must not keep the name of a pod for ever."""
    world = running()
    world.pods["job-trainer-0"]["metadata"]["deletionTimestamp"] = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert world.step(LOST_SECONDS + 2).delete == ()
    (deletion,) = world.step().delete
    assert (deletion.name, deletion.grace) == ("job-trainer-0", 0)


def test_a_pod_of_a_deleted_job_whose_kubelet_is_gone_is_given_up():
    """Else a job that a finalizer holds would hold its quota too."""
    world = running()
    world.pods["job-trainer-0"]["metadata"]["deletionTimestamp"] = stamp(world.now)
    pods, later = [Pod.of(body) for body in world.pods.values()], datetime.timedelta(seconds=LOST_SECONDS + 2)
    grace_periods = {
        deletion.name: deletion.grace for deletion in plan_deleted_job({}, pods, world.now + later).delete
    }
    assert grace_periods == dict.fromkeys(world.pods) | {"job-trainer-0": 0}


def test_a_deadline_ends_the_job():
    world = running("spec.activeDeadlineSeconds=60")
    world.step(120)
    world.settle()
    assert reasons(world)["Failed"] == "DeadlineExceeded"
    assert not world.pods


def test_a_finished_job_is_deleted_after_its_time():
    world = running("spec.ttlSecondsAfterFinished=100")
    world.end("job-trainer-0", 0)
    world.settle()
    assert world.step(101).again is not None
    assert not world.expired
    world.step()
    assert world.expired


@pytest.mark.parametrize("retention", ["never", "onFailure", "always"])
@pytest.mark.parametrize("code", [0, EXIT_INVALID])
def test_servers_stay_after_the_end_where_the_spec_says_so(retention, code):
    """So that one can look at them; trainers that still run go, and the rest at once when the spec changes."""
    world = running(f"spec.podRetention={retention}", "spec.trainer.replicas=2")
    for rank in range(1 if code else 2):
        world.end(f"job-trainer-{rank}", code)
    world.settle()
    assert world.status.phase == ("Succeeded" if code == 0 else "Failed")
    stay = retention == "always" or (retention == "onFailure" and code != 0)
    servers = {"job-generator-0", "job-reward-0", "job-reference-0"} if stay else set()
    assert {name for name in world.pods if world.runs(name)} == servers
    world.overrides = ("spec.podRetention=never", "spec.trainer.replicas=2")
    world.settle()
    assert not any(map(world.runs, world.pods))


def test_pods_that_the_server_refuses_are_told_of_and_not_counted_as_taken_away():
    world = World()
    todo = world.make_plan()
    world.carry_out(todo, only=lambda what: what == "status")
    again = world.make_plan(refused="pods are refused: exceeded quota")
    assert {new.attempt for new in again.create} == {1}
    assert not any(new.resume for new in again.create)
    assert "exceeded quota" in again.status.message
    assert {c.type: c.reason for c in again.status.conditions}["PodsScheduled"] == "PodsRefused"


def test_of_a_later_attempt_that_was_never_made_the_number_is_kept_and_it_resumes():
    world = running()
    world.end("job-trainer-0", 1)
    for _ in range(9):
        todo = world.make_plan()
        if any(new.role == "trainer" for new in todo.create):
            break
        world.step()
        world.kubelet()
    world.carry_out(todo, only=lambda what: what == "status")
    again = world.make_plan()
    assert {(new.attempt, new.resume) for new in again.create if new.role == "trainer"} == {(2, True)}
    assert again.status.restarts == 1


@pytest.mark.parametrize("operator", ["stays", "restarts"])
@pytest.mark.parametrize("alone", ["waits", "fails"])
def test_of_a_gang_that_was_never_whole_nothing_is_resumed(alone, operator):
    """A quota has no room for the second trainer: the first, without which none trains, has left no checkpoint."""
    world, made = World(("spec.trainer.replicas=2",)), []
    for _ in range(12):
        todo = world.step(5, refused="exceeded quota")
        made += [(new.attempt, new.resume) for new in todo.create if new.role == "trainer"]
        world.pods.pop("job-trainer-1", None)
        if alone == "fails" and world.runs("job-trainer-0"):
            world.end("job-trainer-0", 1)
        world.kubelet()
        if operator == "restarts":
            world.remembered = None
    assert len(made) > 4
    assert set(made) == {(1, False)}
    world.settle()
    assert world.attempts() == {"1"}
    del world.pods["job-trainer-1"]
    world.settle()
    assert world.attempts() == {"2"}


def test_a_trainer_taken_away_while_another_pod_is_refused_is_a_new_attempt_that_resumes():
    """A quota has no room for the second generator; the refusal says nothing of trainers that were made long ago."""
    world = running("spec.generator.replicas=2")
    del world.pods["job-trainer-0"], world.pods["job-generator-1"]
    made = [new for _ in range(3) for new in world.step(refused="exceeded quota").create]
    assert {(new.attempt, new.resume) for new in made if new.role == "trainer"} == {(2, True)}
    assert status(world).cluster.attempt == 2


def test_pods_that_can_never_be_made_fail_the_job():
    world = World()
    world.step(refused=Finish("Failed", "InvalidPod", "spec.containers[0].image: Required"))
    assert status(world).phase == "Failed"


def test_why_a_pod_does_not_run_stands_in_the_message():
    world = World()
    world.step()
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    world.pods["job-trainer-0"]["status"] = {
        "phase": "Pending",
        "containerStatuses": [{"name": "role", "state": waiting}],
    }
    world.step()
    assert "job-trainer-0: ImagePullBackOff: no such image" in status(world).message


def test_numbers_that_are_none_stay_out_of_the_status():
    world = running()
    world.trainer = TrainerStatus(
        activity="training", step=3, total_steps=4, reward_mean=float("nan"), kl_mean=float("inf")
    )
    world.step()
    assert status(world).reward is None
    assert status(world).kl is None
