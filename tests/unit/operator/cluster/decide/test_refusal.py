"""Nothing is lost where a spec is wrong for a while, or another release of the operator was at work."""

import pytest
from tests.unit.operator.cluster.world import World, names, reasons, running

from rlhf_api.contract.report import CheckpointStatus, TrainerStatus
from rlhf_operator.cluster.config.limits import Limits
from rlhf_operator.cluster.decide.pod_groups import LOST_SECONDS
from rlhf_operator.cluster.decide.refusal import by_server
from rlhf_operator.cluster.decide.stopping import ASK_AGAIN_SECONDS
from rlhf_operator.kube.api_error import ApiError
from rlhf_operator.status.condition import observed
from rlhf_operator.supervision.process_state import Finish

SUSPENDED, WRONG = "spec.suspend=true", "spec.sampling={minNewTokens: 5, maxNewTokens: 4}"
SAVED = CheckpointStatus(step=3, time="2026-01-01T00:00:00Z", uri="s3://bucket/prefix/3")


def suspended() -> World:
    """A job that saved a checkpoint at step 3 and gave its pods back."""
    world = running()
    world.trainer = TrainerStatus(activity="training", step=3, total_steps=4, last_checkpoint=SAVED)
    world.step()
    world.overrides = (SUSPENDED,)
    world.step()
    world.end("job-trainer-0", 79)
    world.settle()
    world.trainer = None
    assert world.status.phase == "Suspended"
    return world


@pytest.mark.parametrize("where", [(), ("roles", "trainer"), ("cluster",)], ids=["status", "role", "cluster"])
def test_a_field_of_another_release_is_passed_over(where):
    """A newer operator on the same CRD, or one that was rolled back: the run goes on, it does not begin again."""
    world = running()
    written = world.status.model_dump(mode="json", by_alias=True)
    inner = written
    for key in where:
        inner = inner[key]
    inner["ofAnotherRelease"] = {"a": 1}
    world.written = written
    world.trainer = TrainerStatus(activity="training", step=4, total_steps=4)
    assert names(world.step()) == ([], [])
    assert world.status.cluster.attempt == 1
    assert world.status.step == 4


def test_a_status_that_cannot_be_read_is_left_alone_and_said():
    world = running()
    world.step()
    before, event_count = world.status, len(world.events)
    world.written = {"phase": "Paused"}
    todo = world.step()
    assert todo.status is None
    assert names(todo) == ([], [])
    assert (todo.companions, todo.stop, todo.expire, todo.queue) == (False, False, False, None)
    (event,) = todo.events
    assert event.reason == "Unreadable"
    assert "status.phase: 'Paused' is none of Pending" in event.message
    world.written = {}  # the newer release is back
    assert names(world.step()) == ([], [])
    assert world.status == before
    assert len(world.events) == event_count + 1


@pytest.mark.parametrize(
    ("written", "what"),
    [
        ({"cluster": {"attempt": 3}, "state": "Running"}, "status.phase"),
        ({"state": "Running", "operator": {"attempt": 3}}, "status.phase"),
        ({"startTime": "yesterday"}, "status.startTime"),
        ({"usageTime": "2026-01-01T00:00:00"}, "status.usageTime"),
        ({"cluster": {"attempt": 1, "progressTime": ""}}, "status.cluster.progressTime"),
    ],
    ids=["no phase", "neither phase nor cluster", "no time", "no time zone", "empty"],
)
def test_what_was_begun_and_cannot_be_read_is_not_begun_again(written, what):
    world = running("spec.activeDeadlineSeconds=60")
    world.step()
    if "state" in written:
        world.status = None
    world.written = written
    todo = world.make_plan()
    assert (todo.status, *names(todo)) == (None, [], [])
    assert [event.reason for event in todo.events] == ["Unreadable"]
    assert what in todo.events[0].message


def test_conditions_of_another_controller_are_no_status_yet():
    world = World()
    world.written = {"conditions": [{"type": "Audited", "status": "True"}]}
    assert world.step().create


def test_a_mistake_made_while_suspended_keeps_the_checkpoint_and_the_job_goes_on():
    world = suspended()
    world.overrides = (SUSPENDED, WRONG)
    world.step()
    assert world.status.phase == "Failed"
    assert reasons(world)["Failed"] == "ValidationFailed"
    assert world.status.last_checkpoint == SAVED
    assert (world.status.step, world.status.cluster.attempt) == (3, 1)
    assert "spec.sampling.minNewTokens" in world.status.message
    world.overrides = ()
    todo = world.step()
    trainer = next(new for new in todo.create if new.role == "trainer")
    assert (trainer.attempt, trainer.resume) == (2, True)
    assert world.status.last_checkpoint == SAVED
    assert world.status.completion_time is None
    assert "Failed" not in reasons(world)
    assert ("Resumed", "resumed from step 3") in world.events


def test_a_job_that_would_share_gpus_of_a_device_plugin_fails_before_any_pod():
    world = World()
    world.overrides = ("spec.placement=shared", "spec.pods.gpu={count: 1}")
    assert not world.step().create
    assert reasons(world)["Failed"] == "ValidationFailed"
    assert "spec.pods.gpu: a device plugin gives a GPU to one container" in world.status.message


def test_one_mistake_after_another_is_told_each_and_none_twice():
    world = suspended()
    world.overrides = (SUSPENDED, WRONG)
    first = world.step()
    assert world.step().events == ()
    world.overrides = (SUSPENDED, "spec.sampling.topK=-2")
    second = world.step()
    assert [event.reason for event in (*first.events, *second.events)] == ["ValidationFailed"] * 2
    assert "spec.sampling.topK" in world.status.message
    assert world.status.last_checkpoint == SAVED


def test_a_new_job_that_was_refused_starts_anew_once_it_is_corrected():
    world = World((WRONG,))
    todo = world.step()
    assert todo.create == ()
    assert world.status.phase == "Failed"
    world.overrides = ()
    trainer = next(new for new in world.step().create if new.role == "trainer")
    assert (trainer.attempt, trainer.resume) == (1, False)
    assert world.status.total_steps == 4


@pytest.mark.parametrize("begun", [False, True], ids=["new", "suspended"])
def test_a_job_that_another_operator_refused_goes_on_under_one_that_takes_its_spec(begun):
    """A release was rolled back for an hour, or its limits were narrower: nobody has to touch the job."""
    world = suspended() if begun else World((SUSPENDED,))
    world.limits = Limits(serviceAccounts=())
    world.step()
    assert (world.status.phase, reasons(world)["Failed"]) == ("Failed", "ValidationFailed")
    generation, world.limits = world.generation, None
    world.step()
    assert (world.status.phase, world.generation) == ("Suspended", generation)
    assert "Failed" not in reasons(world)
    assert world.status.completion_time is None
    assert world.status.last_checkpoint == (SAVED if begun else None)


INVALID = Finish("Failed", "InvalidPod", 'Pod "job-trainer-0" is invalid: spec.dnsPolicy: Unsupported value')


def test_a_pod_that_can_never_be_made_is_no_attempt_and_the_corrected_job_starts_anew():
    world = World(("spec.activeDeadlineSeconds=60",))
    world.carry_out(world.make_plan(), only=lambda what: what == "status")
    world.step(refused=INVALID)
    assert (world.status.phase, reasons(world)["Failed"]) == ("Failed", "InvalidPod")
    for _ in range(3):  # as long as nothing is corrected
        assert names(world.step(3600)) == ([], [])
    world.overrides += ("spec.pods.priorityClass=batch",)
    trainer = next(new for new in world.step().create if new.role == "trainer")
    assert (trainer.attempt, trainer.resume) == (1, False)
    assert "Failed" not in reasons(world)
    world.settle()  # the deadline is counted from this start
    assert world.status.phase == "Provisioning"


def test_a_job_that_ran_before_a_pod_of_it_was_refused_for_good_resumes():
    world = running()
    world.step(refused=INVALID)
    world.settle()
    assert (world.status.phase, list(world.pods)) == ("Failed", [])
    world.overrides = ("spec.pods.priorityClass=batch",)
    trainer = next(new for new in world.step().create if new.role == "trainer")
    assert (trainer.attempt, trainer.resume) == (2, True)
    assert ("Resumed", "resumed from step 3") in world.events


def test_an_invalid_pod_and_then_an_invalid_spec_are_both_told():
    world = World()
    world.step(refused=INVALID)
    world.overrides = (WRONG,)
    world.step()
    assert reasons(world)["Failed"] == "ValidationFailed"
    assert "spec.sampling.minNewTokens" in world.status.message


def test_a_job_that_is_over_stays_so_whatever_is_written_into_its_spec():
    world = running()
    world.end("job-trainer-0", 0)
    world.settle()
    before = world.status
    for overrides in ((WRONG,), ()):
        world.overrides = overrides
        assert names(world.step()) == ([], [])
        # Who waits for the spec's generation to be seen is not kept waiting.
        assert world.status == observed(before, world.generation)
        assert {c.observed_generation for c in world.status.conditions} == {world.generation}
    assert world.generation > before.observed_generation


def over(*overrides: str) -> World:
    """An ended job whose spec another release, or one with other limits, would take no more."""
    world = running(*overrides)
    world.end("job-trainer-0", 0)
    world.settle()
    assert world.status.phase == "Succeeded"
    world.overrides = (*overrides, WRONG)
    return world


def test_a_job_that_is_over_is_deleted_after_its_time_whatever_its_spec_says():
    world = over("spec.ttlSecondsAfterFinished=1000")
    left = world.make_plan().again
    assert 800 < left < 1000
    world.step(left - 1)
    world.step()
    assert not world.expired
    world.step()
    assert world.expired


@pytest.mark.parametrize("refused", [None, INVALID], ids=["spec", "pod"])
def test_a_refused_job_that_can_be_corrected_is_not_deleted(refused):
    world = World(("spec.ttlSecondsAfterFinished=10", *([] if refused else [WRONG])))
    world.step(1000, refused=refused)
    assert world.step(1000).again == (ASK_AGAIN_SECONDS if refused else None)
    world.step()
    assert (world.status.phase, world.expired) == ("Failed", False)


def test_a_pod_of_a_refused_job_whose_node_is_gone_is_given_up():
    world = running()
    world.end("job-trainer-0", 0)
    world.step()
    world.overrides = (WRONG,)
    world.step(LOST_SECONDS + 2)
    lost = world.pods["job-generator-0"]
    assert "deletionTimestamp" in lost["metadata"]
    (deletion,) = (each for each in world.make_plan().delete if each.uid == lost["metadata"]["uid"])
    assert deletion.grace == 0


def test_pods_whose_configuration_is_lost_do_not_go_on_behind_a_refused_spec():
    """Somebody deleted the ConfigMap, and the spec as it stands can't run."""
    world = running()
    world.configs.clear()
    world.overrides = (WRONG,)
    assert sorted(names(world.step())[1]) == sorted(world.pods)
    assert world.status.phase == "Failed"


@pytest.mark.parametrize(
    ("status", "kind", "message", "for_good"),
    [
        (422, "Pod", 'Pod "a" is invalid: spec.volumes[4].name: Duplicate value: "x"', True),
        (
            400,
            "Pod",
            'BadRequest: Pod in version "v1" cannot be handled as a Pod: v1.Pod.Spec: decode slice: expect [ or n',
            True,
        ),
        (400, "Pod", "a proxy's own: bad request", False),
        (
            422,
            "Pod",
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: not now",
            False,
        ),
        (422, "Workload", 'Workload "a" is invalid: spec: Invalid value: field is immutable', False),
        (422, "Service", 'Service "a" is invalid: spec.clusterIPs[0]: may not change once set', False),
        (422, "Pod", 'admission webhook "w.example" denied the request: no more pods today', False),
        (403, "Pod", 'pods "a" is forbidden: exceeded quota', False),
        (0, "Pod", "nobody answers", False),
    ],
)
def test_only_a_pod_that_can_never_be_taken_ends_its_job(status, kind, message, for_good):
    refused = by_server(ApiError(status, "", message, kind=kind))
    assert isinstance(refused, Finish) is for_good
    assert message in (refused.message if isinstance(refused, Finish) else refused)


@pytest.mark.parametrize(
    ("status", "message", "whose"),
    [
        (403, 'pods "a" is forbidden: exceeded quota: tight', True),
        (404, "could not find the requested resource", True),
        (
            403,
            'pods is forbidden: User "system:serviceaccount:rlhf:rlhf" cannot create resource "pods"',
            False,
        ),
        (403, 'admission webhook "w" denied the request: the image "a" cannot be verified', True),
        (500, "etcdserver: request timed out", False),
        (0, "nobody answers", False),
    ],
)
def test_a_refusal_is_the_jobs_unless_the_operator_lacks_a_right(status, message, whose):
    assert ApiError(status, "", message, kind="Pod").of_job is whose
