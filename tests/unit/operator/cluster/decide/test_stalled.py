"""A job that does not get on says why, in a condition, and lets go of what it holds where it is told to."""

import datetime

import pytest
from tests.unit.operator.cluster.world import Role, World, names, reasons, running, stamp

from rlhf_api.contract.report import TrainerStatus
from rlhf_operator.cluster.act.status_writer import is_worth_writing
from rlhf_operator.cluster.decide.conditions import SILENT_SECONDS
from rlhf_operator.cluster.decide.pod_groups import LOST_SECONDS

STATUS = {"phase": "Running", "step": 3, "activity": "training", "queue": 4, "tokensPerSecond": 1.0}


def stalled(world: World) -> tuple[str, str, str]:
    current = next(c for c in world.status.conditions if c.type == "Stalled")
    return current.status, current.reason, current.message


@pytest.mark.parametrize(
    ("change", "at_once"),
    [
        ({}, None),
        ({"queue": 0, "activity": "saving", "tokensPerSecond": 2.0}, False),
        ({"ledger": {"issued": 1}, "estimatedEnd": "later", "generators": [{}], "unscored": 3}, False),
        ({"step": 4}, True),
        ({"phase": "Suspended", "queue": 0}, True),
        ({"conditions": [{"type": "Stalled"}]}, True),
    ],
    ids=["nothing", "figures", "more figures", "step", "phase", "condition"],
)
def test_a_status_is_stored_when_something_has_changed_and_figures_every_30_seconds(change, at_once):
    now = STATUS | change
    assert is_worth_writing(STATUS, now, 29.0) is bool(at_once)
    assert is_worth_writing(STATUS, now, 30.0) is (at_once is not None)


def test_what_another_controller_writes_into_a_status_is_neither_news_nor_ours():
    world = running()
    world.step()
    written = world.status.model_dump(mode="json", by_alias=True)
    foreign = {"type": "Audited", "status": "True", "lastTransitionTime": "", "reason": "", "message": ""}
    world.written = {"conditions": [foreign, *written["conditions"]], "auditedBy": "team"}
    todo = world.make_plan()
    assert "Audited" not in {c.type for c in todo.status.conditions}
    now = todo.status.model_dump(mode="json", by_alias=True)
    assert not is_worth_writing(written | world.written, now, 60.0)


def test_a_job_that_gets_on_is_not_stalled():
    assert stalled(running()) == ("False", "NotStalled", "")


def test_a_trainer_that_cannot_be_reached_is_told_of_and_left_alone():
    world = running()
    silent, begun = world.now.timestamp(), stamp(world.now)
    world.step(SILENT_SECONDS - 1, silent_since=silent)
    world.step(2, silent_since=silent)
    assert stalled(world)[0] == "False"
    assert names(world.step(silent_since=silent)) == ([], [])
    assert stalled(world)[:2] == ("True", "TrainerUnreachable")
    assert world.status.phase == "Running"
    since = world.status.conditions
    world.step(60, silent_since=silent)
    assert world.status.conditions == since  # nothing to write
    world.step(silent_since=silent, trainer_error="the trainer refuses the job's token")
    assert stalled(world)[2] == f"since {begun}: the trainer refuses the job's token"
    world.step()
    assert stalled(world)[0] == "False"


def test_a_node_that_is_gone_is_told_of():
    world = running()
    world.pods["job-generator-0"]["metadata"]["deletionTimestamp"] = stamp(world.now)
    world.step(LOST_SECONDS + 2)
    world.step()
    assert stalled(world)[:2] == ("True", "NodeLost")
    assert "job-generator-0 should have ended, and its node node-1" in stalled(world)[2]


def test_a_pod_that_only_a_finalizer_keeps_is_told_of_and_not_deleted_again_and_again():
    world = running()
    world.pods["job-generator-0"]["metadata"] |= {
        "deletionTimestamp": stamp(world.now),
        "deletionGracePeriodSeconds": 0,
        "finalizers": ["example.com/audit"],
    }
    assert not any(d.name == "job-generator-0" for d in world.step(LOST_SECONDS + 2).delete)
    assert stalled(world)[1] != "PodHeld", "whoever set it may be about to let go"
    assert not any(d.name == "job-generator-0" for d in world.step().delete)
    assert stalled(world)[:2] == ("True", "PodHeld")
    assert "job-generator-0 has ended and is deleted" in stalled(world)[2]
    assert "example.com/audit" in stalled(world)[2]
    del world.pods["job-generator-0"]
    world.settle()
    assert world.runs("job-generator-0")


def unplaced(world: World, *pods: str) -> None:
    for name in pods:
        reason = {"reason": "Unschedulable", "message": "0/9 nodes are available"}
        condition = {"type": "PodScheduled", "status": "False", **reason}
        world.pods[name]["status"] = {"phase": "Pending", "conditions": [condition]}


def test_the_trainer_is_told_how_many_generators_have_no_node():
    """It waits for all others when it starts."""
    world = running("spec.generator.replicas=2")
    assert world.make_plan().members.unplaced == ()
    world.overrides = ("spec.generator.replicas=4",)
    world.step()
    unplaced(world, "job-generator-2", "job-generator-3")
    assert world.make_plan().members.unplaced == (Role.GENERATOR,) * 2
    del world.pods["job-generator-3"]
    assert world.make_plan(refused="exceeded quota").members.unplaced == (Role.GENERATOR,) * 2
    world.settle()
    assert world.make_plan().members.unplaced == ()


def test_gangs_that_hold_gpus_for_each_other_are_told_of():
    world = World(("spec.trainer.replicas=2",))
    world.step()
    unplaced(world, *world.pods)
    world.step()
    assert stalled(world)[:2] == ("True", "Unschedulable")
    world.run("job-trainer-0")
    world.run("job-generator-0")
    world.step()
    for kind in ("Stalled", "PodsScheduled"):
        assert reasons(world)[kind] == "PartlyScheduled"
    assert "2 other pods hold their nodes meanwhile: set spec.scheduling.gang" in stalled(world)[2]


def test_a_generator_without_a_node_beside_a_job_that_trains_does_not_stall_it():
    """Gang scheduling and a deadline for the start would change nothing: the job runs."""
    world = running("spec.generator.replicas=2")
    unplaced(world, "job-generator-1")
    world.step()
    assert stalled(world) == ("False", "NotStalled", "")
    (placed,) = (c for c in world.status.conditions if c.type == "PodsScheduled")
    assert (placed.status, placed.reason) == ("False", "Unschedulable")
    assert "spec.scheduling" not in placed.message


def test_a_generator_that_pulls_its_image_beside_a_job_that_trains_does_not_stall_it():
    world = running("spec.generator.replicas=2")
    waiting = {"name": "role", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "why"}}}
    world.pods["job-generator-1"]["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    world.step()
    assert stalled(world)[0] == "False"
    assert reasons(world)["RolesReady"] == "RolesNotReady"


@pytest.mark.parametrize("name", ["job-generator-0", "job-reward-0"])
def test_a_role_of_which_no_server_has_a_node_stalls_a_job_that_trained(name):
    world = running()
    unplaced(world, name)
    world.step()
    assert world.status.phase == "Running"
    assert stalled(world)[:2] == ("True", "Unschedulable")


def test_a_scheduler_that_counts_its_nodes_anew_tells_the_same_of_the_same_pod():
    world = World()
    world.step()
    waiting_events = []
    for count in (8, 9):
        unplaced(world, "job-trainer-0")
        (condition,) = world.pods["job-trainer-0"]["status"]["conditions"]
        condition["message"] = f"0/{count} nodes are available"
        waiting_events += [event for event in world.step().events if event.reason == "PodsWaiting"]
    assert [event.message[-23:] for event in waiting_events] == [
        "0/8 nodes are available",
        "0/9 nodes are available",
    ]
    assert {event.alike for event in waiting_events} == {
        "job-trainer-0: Unschedulable: / nodes are available"
    }


WAITS = "spec.scheduling.preRunningDeadlineSeconds=100"


def test_a_provisioning_that_does_not_end_lets_go_of_its_gpus():
    world = World((WAITS,))
    world.step(5)
    world.run("job-generator-0")
    unplaced(world, "job-trainer-0")
    world.step(90)
    assert world.status.phase == "Provisioning"
    world.step(10)
    world.settle()
    assert world.status.phase == "Failed"
    assert reasons(world)["Failed"] == "PreRunningDeadlineExceeded"
    assert "spec.scheduling.preRunningDeadlineSeconds); waiting for trainer 0/1" in world.status.message
    assert "0/9 nodes are available" in world.status.message
    assert not world.pods


def test_a_job_that_runs_has_no_such_deadline_and_a_suspended_one_gets_it_anew():
    world = running(WAITS)
    world.step(1000)
    assert world.status.phase == "Running"
    world.overrides = (WAITS, "spec.suspend=true")
    world.step()
    world.end("job-trainer-0", 79)
    world.settle()
    world.now += datetime.timedelta(hours=1)
    world.overrides, world.trainer = (WAITS,), None
    world.step(50)
    world.step()
    assert world.status.phase == "Provisioning"


def test_a_trainer_that_waits_for_a_node_after_it_has_trained_fails_no_job():
    """Its node was lost, and a new one takes longer than `startupTimeoutSeconds`."""
    world = running(WAITS)
    del world.pods["job-trainer-0"]
    world.trainer = None
    world.step(5)
    for _ in range(5):
        world.step(5)
        unplaced(world, *[name for name in world.pods if name == "job-trainer-0"])
    waits = world.pods["job-trainer-0"]["metadata"]["uid"]
    for _ in range(5):
        world.step(1000)
        world.step()
        assert world.status.phase == "Provisioning"
        assert stalled(world)[:2] == ("True", "PartlyScheduled")
    assert world.pods["job-trainer-0"]["metadata"]["uid"] == waits
    assert world.status.restarts == 0


@pytest.mark.parametrize("is_reported", [True, False], ids=["told by the server", "not yet"])
def test_a_pod_that_kueue_has_put_into_a_queue_of_its_own_is_told_of(is_reported):
    """As Kueue's webhook does since 0.16 unless it knows the pod's owner; it would wait for ever, beside its job."""
    world = World()
    world.step()
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}
    for name, body in world.pods.items():
        if name != "job-reward-0":
            body["spec"] = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}], "containers": []}
            body["status"] = {"phase": "Pending", "conditions": [gated] * is_reported}
    world.run("job-reward-0")
    world.step()
    status, reason, message = stalled(world)
    assert (status, reason) == ("True", "GatedByKueue")
    assert "integrations.externalFrameworks" in message
    assert reasons(world)["PodsScheduled"] == "GatedByKueue"


def test_a_container_that_waits_for_no_reason_that_is_told_gives_no_condition_without_one():
    """Virtual kubelets report so; a condition's reason must not be empty."""
    world = World()
    world.step()
    waits = {"containerStatuses": [{"name": "role", "state": {"waiting": {"reason": "", "message": "soon"}}}]}
    world.pods["job-trainer-0"]["status"] = {"phase": "Pending", **waits}
    world.step()
    assert all(condition.reason for condition in world.status.conditions)
    assert stalled(world)[0] == "False"


@pytest.mark.parametrize(
    "waiting",
    [
        {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
        {"containerStatuses": [{"name": "role", "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
        {
            "initContainerStatuses": [{"name": "models", "state": {"running": {"startedAt": "now"}}}],
            "containerStatuses": [{"name": "role", "state": {"waiting": {"reason": "PodInitializing"}}}],
        },
    ],
    ids=["node", "image", "model"],
)
def test_a_trainer_that_has_not_begun_is_not_taken_for_one_that_hangs(waiting):
    """It waits in its place of the queue, or downloads, for however long."""
    world = World(("spec.trainer.startupTimeoutSeconds=600",))
    world.step()
    world.kubelet()
    uid = world.pods["job-trainer-0"]["metadata"]["uid"]
    world.pods["job-trainer-0"]["status"] = {"phase": "Pending", **waiting}
    for _ in range(8):
        world.step(900)
    assert (world.status.phase, world.status.restarts) == ("Provisioning", 0)
    assert world.pods["job-trainer-0"]["metadata"]["uid"] == uid
    world.kubelet()
    unready(world)
    for seconds in (450, 449, 60):
        assert names(world.step(seconds)) == ([], []), "it has its time from its start on"
    assert names(world.make_plan())[1] == ["job-trainer-0"]


def test_a_failing_init_container_is_told_of_and_counted():
    world = World(("spec.reward.backoffLimit=1",))
    world.step()
    failed = {"name": "download", "state": {"terminated": {"exitCode": 3, "message": "no such bucket"}}}
    for name in ("job-trainer-0", "job-generator-0", "job-reference-0"):
        world.run(name)
    for phase in ("Pending", "Failed"):  # the kubelet reports the container before the pod
        world.pods["job-reward-0"]["status"] = {"phase": phase, "initContainerStatuses": [failed]}
        world.step()
        if phase == "Pending":
            message = "job-reward-0: InitContainerFailed: init container download exited with code 3: no such bucket"
            assert stalled(world) == ("True", "InitContainerFailed", message)
    world.settle()
    assert world.status.restarts == 1
    world.pods["job-reward-0"]["status"] = {"phase": "Failed", "initContainerStatuses": [failed]}
    world.settle()
    assert world.status.phase == "Failed"
    assert "reward-0 init container download exited with code 3: no such bucket" in world.status.message
    assert world.status.roles[Role.REWARD].last_failure.log == "no such bucket"


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "CreateContainerConfigError", "CrashLoopBackOff"])
@pytest.mark.parametrize("field", ["initContainerStatuses", "containerStatuses"])
def test_why_a_container_waits_is_the_reason(reason, field):
    world = World()
    world.step()
    waiting = {"name": "role", "state": {"waiting": {"reason": reason, "message": "why"}}}
    world.pods["job-trainer-0"]["status"] = {"phase": "Pending", field: [waiting]}
    world.step()
    assert stalled(world) == ("True", reason, f"job-trainer-0: {reason}: why")


def unready(world: World) -> None:
    """As a kubelet finds a trainer that does not answer."""
    world.pods["job-trainer-0"]["status"]["conditions"] = [{"type": "Ready", "status": "False"}]


def counting(*overrides: str) -> World:
    """A job whose trainer stands where it is, until it is told otherwise."""
    world = running(*overrides)
    world.trainer = world.trainer.model_copy(update={"progress_count": 7})
    return world


HOUR = "spec.trainer.progressDeadlineSeconds=3600"


@pytest.mark.parametrize(
    ("activity", "silent"), [("training", False), ("training", True), ("starting", False)]
)
def test_a_trainer_without_progress_is_started_again_and_counted_once(activity, silent):
    """In a step, and while it loads its models."""
    world = counting(HOUR, "spec.trainer.replicas=2")
    world.trainer = world.trainer.model_copy(update={"activity": activity})
    observation = {"silent_since": world.now.timestamp()} if silent else {}
    if silent:
        unready(world)
    for _ in range(71):
        assert names(world.step(50, **observation)) == ([], [])
    assert world.status.restarts == 0
    world.now += datetime.timedelta(seconds=60 + 3600 / 10)
    world.step(**observation)
    world.settle()
    assert world.attempts() == {"2"}
    assert world.status.restarts == 1
    messages = [message for reason, message in world.events if reason == "PodFailed"]
    words = f"made no progress for 3600 s, last seen {activity} (spec.trainer.progressDeadlineSeconds)"
    assert f"trainer-0 {words}" in messages


def test_a_trainer_without_progress_is_told_of_once_after_a_third_of_its_deadline_and_taken_back():
    world = counting(HOUR)
    world.step(3600 / 10)
    world.step(50)  # its count is known from here on
    began = world.status.cluster.progress_time
    for _ in range(23):
        world.step(50)
        assert stalled(world)[0] == "False"
    since = datetime.datetime.fromisoformat(began)
    due = stamp(since + datetime.timedelta(hours=1))
    message = (
        f"the trainer has made no progress since {began}, last seen training; "
        f"it is started again at {due} (spec.trainer.progressDeadlineSeconds)"
    )
    for _ in range(3):
        world.step(50)
        assert stalled(world) == ("True", "NoProgress", message)
    assert [text for reason, text in world.events if reason == "NoProgress"] == [message]
    world.trainer = world.trainer.model_copy(update={"progress_count": 8})
    world.step(50)
    assert stalled(world) == ("False", "NotStalled", "")
    assert world.status.restarts == 0


def test_a_trainer_that_gets_on_is_left_alone_by_an_operator_that_was_started_again_too():
    world = running(HOUR)
    for count in range(8, 14):
        world.trainer = TrainerStatus(activity="training", step=3, total_steps=20, progress_count=count)
        world.step(3000)
        world.trainer = None  # as a new operator sees it
        assert names(world.step(1)) == ([], [])
    assert world.status.restarts == 0


def test_progress_within_a_step_is_a_write_in_a_tenth_of_its_deadline():
    world, written = counting(HOUR), set()
    for count in range(8, 80):  # an hour
        world.trainer = world.trainer.model_copy(update={"progress_count": count})
        world.step(50)
        written.add(world.status.cluster.progress_time)
    assert 9 <= len(written) <= 11


def test_a_trainer_of_an_earlier_release_that_counts_nothing_need_only_answer():
    world = running(HOUR)
    world.trainer = world.trainer.model_copy(update={"progress_count": None})
    for _ in range(4):
        assert names(world.step(3000)) == ([], [])
    silent = world.now.timestamp()
    unready(world)
    world.now += datetime.timedelta(seconds=3600)
    assert names(world.make_plan(silent_since=silent))[1] == ["job-trainer-0"]


def test_a_trainer_that_the_operator_alone_cannot_reach_is_not_taken_for_one_that_hangs():
    world = counting(HOUR)
    silent = world.now.timestamp()
    for _ in range(4):
        assert names(world.step(3000, silent_since=silent)) == ([], [])
    assert stalled(world)[:2] == ("True", "TrainerUnreachable")


def test_a_gang_that_has_reported_nothing_has_the_time_of_its_start():
    world = World(("spec.trainer.progressDeadlineSeconds=60", "spec.trainer.startupTimeoutSeconds=3600"))
    world.step()
    world.kubelet()
    unready(world)
    for _ in range(34):
        assert names(world.step(100)) == ([], [])
    world.now += datetime.timedelta(seconds=300)
    assert names(world.make_plan())[1] == ["job-trainer-0"]


def test_a_trainer_that_hangs_again_and_again_uses_up_its_budget():
    world = counting()
    for _ in range(4):
        world.step(900 / 10)
        world.step(900)
        world.settle()
    assert world.status.phase == "Failed"
    assert "made no progress for 900 s" in world.status.message


@pytest.mark.parametrize(
    ("field", "kind", "reason"),
    [("over_tcp", "SlowNetwork", "NcclOverTcp"), ("data_changed", "DataChanged", "OtherRows")],
)
def test_what_the_trainer_warns_of_is_a_condition_and_one_event(field, kind, reason):
    world, message = running(), "NCCL goes over TCP though the job asks for RDMA (rdma/hca): no device"
    assert kind not in reasons(world)
    world.trainer = world.trainer.model_copy(update={field: message})
    world.step()
    world.step()
    (condition,) = (c for c in world.status.conditions if c.type == kind)
    assert (condition.status, condition.reason, condition.message) == ("True", reason, message)
    assert [event for event in world.events if event[0] == reason] == [(reason, message)]
