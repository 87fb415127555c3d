"""The restart policy as a table: process states in, actions out."""

from collections.abc import Mapping, Sequence

import pytest
from tests.unit.api.manifests import job

from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.supervision.budget import Restarts, record_restart
from rlhf_operator.supervision.process_state import Action, Ended, Finish, Kill, ProcessState, Start
from rlhf_operator.supervision.restart_policy import decide

T, G, R, F = Role.TRAINER, Role.GENERATOR, Role.REWARD, Role.REFERENCE
NOW = 1000.0
SPEC = job("spec.generator.replicas=2", "spec.generator.backoffLimit=2").spec
RULES = job(
    "spec.reward.failureRules=[{action: FailJob, reasons: [OOMKilled]}, {action: Ignore, exitCodes: [3, 137]}, "
    "{action: Count, exitCodes: [78], reasons: [Evicted]}]"
).spec
FULL = job("spec.reward.failureRules=[{action: FailJob, reasons: [DiskFull]}]").spec
GANG = job("spec.trainer.replicas=2", "spec.trainer.backoffLimit=1").spec


def recent(failures: int, disruptions: int = 0) -> Restarts:
    return Restarts(failures, failures, disruptions, since=NOW - 100, last=NOW - 100)


def up(role: Role, index: int = 0) -> ProcessState:
    return ProcessState(role, index, started=0.0, ready=True)


def new(role: Role, index: int = 0) -> ProcessState:
    return ProcessState(role, index)


def starting(role: Role, since: float, index: int = 0) -> ProcessState:
    return ProcessState(role, index, started=since)


def ended(role: Role, code: int, at: float = 0.0, index: int = 0, ready: bool = True) -> ProcessState:
    return ProcessState(
        role, index, started=0.0, ready=ready, ended=Ended(at, code, f"exited with code {code}: why")
    )


UP = (up(T), up(G, 0), up(G, 1), up(R), up(F))
FAILED = "exited with code 1: why"
ROLLED_BACK = (Start(T, (0, 1), again=True, disrupted=True),)


def but(*changed: ProcessState) -> tuple[ProcessState, ...]:
    by_name = {s.name: s for s in changed}
    return tuple(by_name.get(s.name, s) for s in UP)


TABLE: list[tuple[str, Spec, Sequence[ProcessState], Mapping[Role, int], Sequence[Action]]] = [
    (
        "everything is started at first",
        SPEC,
        (new(T), new(G, 0), new(G, 1), new(R), new(F)),
        {},
        (Start(T, (0,)), Start(G, (0,)), Start(G, (1,)), Start(R, (0,)), Start(F, (0,))),
    ),
    ("nothing to do while all run", SPEC, UP, {}, ()),
    ("a generator is started again", SPEC, but(ended(G, 1, index=1)), {}, (Start(G, (1,), True),)),
    ("so is one that ended with 0", SPEC, but(ended(G, 0, index=1)), {}, (Start(G, (1,), True),)),
    ("after a pause", SPEC, but(ended(G, 1, at=NOW - Restarts().pause(3) + 0.1)), {}, ()),
    ("which grows with restarts", SPEC, but(ended(G, 1, at=NOW - Restarts().pause(3))), {G: 1}, ()),
    (
        "two at once count twice",
        SPEC,
        but(ended(G, 1), ended(G, 1, index=1)),
        {G: 1},
        (
            Finish(
                "Failed",
                "BackoffLimitExceeded",
                f"generator-1 {FAILED} (started again 2 of 2 times within 3600 s)",
            ),
        ),
    ),
    (
        "beyond the budget too, while another one loads its model for the first time",
        SPEC,
        but(ended(G, 1), starting(G, NOW - 500, 1)),
        {G: 2},
        (Start(G, (0,), True),),
    ),
    (
        "and without a budget",
        job("spec.generator.replicas=2", "spec.generator.backoffLimit=0").spec,
        but(ended(G, 1), starting(G, NOW, 1)),
        {},
        (Start(G, (0,), True),),
    ),
    (
        "until all had the time to start",
        job(
            "spec.generator.replicas=2",
            "spec.generator.backoffLimit=2",
            "spec.generator.startupTimeoutSeconds=100",
        ).spec,
        but(ended(G, 1), starting(G, NOW, 1)),
        {G: 2},
        (
            Finish(
                "Failed",
                "BackoffLimitExceeded",
                "generator-0 exited with code 1: why (started again 2 of 2 times within 3600 s)",
            ),
        ),
    ),
    ("each role has its own budget", SPEC, but(ended(R, 1)), {G: 2}, (Start(R, (0,), True),)),
    (
        "without a budget there is no restart",
        job("spec.reward.backoffLimit=0").spec,
        but(ended(R, 1)),
        {},
        (Finish("Failed", "BackoffLimitExceeded", f"reward-0 {FAILED} (spec.reward.backoffLimit is 0)"),),
    ),
    (
        "an invalid job fails at once, whatever else ended",
        SPEC,
        but(ended(G, 1), ended(R, 78)),
        {},
        (Finish("Failed", "InvalidConfiguration", "reward-0 exited with code 78: why"),),
    ),
    (
        "the trainer is done",
        SPEC,
        but(ended(T, 0), ended(R, 1)),
        {},
        (Finish("Succeeded", "Completed", ""),),
    ),
    (
        "or was stopped on request",
        SPEC,
        but(ended(T, 79)),
        {},
        (Finish("Suspended", "StoppedOnRequest", "the trainer was told to stop, by a signal or its API"),),
    ),
    (
        "a trainer is started again, before its first checkpoint too",
        SPEC,
        but(ended(T, 1)),
        {},
        (Start(T, (0,), True),),
    ),
    ("unless another one of the role serves", SPEC, but(ended(G, 1)), {G: 2}, (Start(G, (0,), True),)),
    (
        "an end that a rule ignores is not counted",
        RULES,
        but(ended(R, 137)),
        {R: 3},
        (Start(R, (0,), True, disrupted=True),),
    ),
    (
        "one that a rule counts is, whatever it was",
        RULES,
        but(ProcessState(R, 0, 0.0, True, Ended(0.0, 143, "was evicted", disrupted=True, cause="Evicted"))),
        {R: 3},
        (
            Finish(
                "Failed",
                "BackoffLimitExceeded",
                "reward-0 was evicted (started again 3 of 3 times within 3600 s)",
            ),
        ),
    ),
    (
        "a rule of health fails the job",
        SPEC,
        but(ended(T, 81)),
        {},
        (Finish("Failed", "HealthRule", "trainer-0 exited with code 81: why"),),
    ),
    (
        "a rollback uses up no budget",
        GANG,
        (ended(T, 80), ended(T, 80, index=1), *UP[1:]),
        {T: 1},
        ROLLED_BACK,
    ),
    ("78 too", RULES, but(ended(R, 78)), {}, (Start(R, (0,), True),)),
    (
        "a rule fails the job at once",
        RULES,
        but(ProcessState(R, 0, 0.0, True, Ended(0.0, 137, "ran out of memory", cause="OOMKilled"))),
        {},
        (Finish("Failed", "FailureRule", "reward-0 ran out of memory (spec.reward.failureRules[0])"),),
    ),
    (
        "a rule for a type of failures",
        FULL,
        but(ProcessState(R, 0, 0.0, True, Ended(0.0, 1, "exited with code 1: No space left on device"))),
        {},
        (
            Finish(
                "Failed",
                "FailureRule",
                "reward-0 exited with code 1: No space left on device (spec.reward.failureRules[0])",
            ),
        ),
    ),
    (
        "whose type is told where the budget is used up",
        SPEC,
        but(ProcessState(R, 0, 0.0, True, Ended(0.0, 1, "exited with code 1: No space left on device"))),
        {R: 3},
        (
            Finish(
                "Failed",
                "BackoffLimitExceeded",
                "reward-0 exited with code 1: No space left on device "
                "(DiskFull; started again 3 of 3 times within 3600 s)",
            ),
        ),
    ),
    (
        "rules are their role's alone",
        RULES,
        but(ProcessState(G, 0, 0.0, True, Ended(0.0, 137, "ran out of memory", cause="OOMKilled"))),
        {},
        (Start(G, (0,), True),),
    ),
    (
        "a trainer that is done is judged by no rule",
        job("spec.trainer.failureRules=[{action: FailJob, exitCodes: [0, 79]}]").spec,
        but(ended(T, 0)),
        {},
        (Finish("Succeeded", "Completed", ""),),
    ),
    (
        "a gang ends together",
        GANG,
        (ended(T, 1, index=1), up(T, 0)),
        {},
        (Kill(T, 0, f"its peer trainer-1 {FAILED}"),),
    ),
    (
        "and starts together",
        GANG,
        (ended(T, 137, at=5.0), ended(T, 1, at=4.0, index=1)),
        {},
        (Start(T, (0, 1), True),),
    ),
    (
        "its first failure is told",
        GANG,
        (ended(T, 137, at=5.0), ended(T, 1, at=4.0, index=1)),
        {T: 1},
        (
            Finish(
                "Failed",
                "BackoffLimitExceeded",
                f"trainer-1 {FAILED} (started again 1 of 1 times within 3600 s)",
            ),
        ),
    ),
    ("a peer that is done waits for the others", GANG, (up(T), ended(T, 0, at=NOW, index=1)), {}, ()),
    (
        "but not for ever",
        GANG,
        (ended(T, 0, at=NOW - 31), up(T, 1)),
        {},
        (Finish("Succeeded", "Completed", ""),),
    ),
    (
        "a role that does not answer in time is ended",
        SPEC,
        but(starting(G, NOW - 600)),
        {},
        (Kill(G, 0, "did not answer within 600 s (spec.generator.startupTimeoutSeconds)"),),
    ),
    ("but not before", SPEC, but(starting(G, NOW - 599)), {}, ()),
]


@pytest.mark.parametrize(
    ("spec", "states", "restarts", "expected"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_decisions(
    spec: Spec, states: Sequence[ProcessState], restarts: Mapping[Role, int], expected: Sequence[Action]
) -> None:
    known = {role: recent(count) for role, count in restarts.items()}
    assert decide(spec, states, known, now=NOW) == tuple(expected)


PROGRAM = "exited with code 1: RuntimeError: more than one element of a tensor; see runs/a/logs/trainer-0.log"


def failed_trainer(reason: str) -> tuple[ProcessState, ...]:
    return but(ProcessState(T, 0, started=0.0, ready=True, ended=Ended(0.0, 1, reason)))


def restart_after(reason: str, step: int) -> dict[Role, Restarts]:
    """The state once the trainer was started again after this end."""
    (start,) = decide(SPEC, failed_trainer(reason), {}, now=NOW, step=step)
    assert isinstance(start, Start)
    return record_restart(SPEC, {}, T, NOW - 100, counts=start.counts, cause=start.cause)


def test_an_error_of_the_program_that_comes_twice_at_one_step_ends_the_job():
    known = restart_after(PROGRAM, step=3)
    message = f"trainer-0 {PROGRAM} (twice at step 3: another start would end the same)"
    again = decide(SPEC, failed_trainer(PROGRAM), known, now=NOW, step=3)
    assert again == (Finish("Failed", "SameErrorTwice", message),)


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        (PROGRAM, 4),
        (PROGRAM.replace("more than", "less than"), 3),
    ],
    ids=["at another step", "another error"],
)
def test_a_trainer_that_got_further_or_failed_otherwise_is_started_again(reason: str, step: int):
    (start,) = decide(SPEC, failed_trainer(reason), restart_after(PROGRAM, step=3), now=NOW, step=step)
    assert isinstance(start, Start)


@pytest.mark.parametrize(
    "error",
    [
        "Unscored: 16 of 16 responses have no score",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        "RuntimeError: NCCL communicator was aborted",
        "ValueError: No space left on device",
        "ConnectionError: store unreachable",
    ],
)
def test_an_error_of_the_machine_or_of_others_may_come_twice(error: str):
    reason = f"exited with code 1: {error}"
    (start,) = decide(SPEC, failed_trainer(reason), restart_after(reason, step=0), now=NOW, step=0)
    assert isinstance(start, Start)


def test_another_teachers_processes_do_not_keep_a_job_alive_whose_teacher_fails():
    """Two teachers, of which the first has two processes: one that fails for good is missed only where its teacher has
    no other."""
    teachers = "[{name: a, model: a, replicas: 2}, {name: b, model: b}]"
    given = ("spec.algorithm=distillation", "spec.ppo={}", "spec.reward={}", "spec.model={policy: p}")
    spec = job(
        *(*given, "spec.sampling={}", "spec.reference.backoffLimit=1"),
        f"spec.distillation={{minibatchSize: 8, teachers: {teachers}}}",
    ).spec
    known = {F: recent(1)}
    states = [up(T), up(G), *(up(F, index) for index in range(3))]
    assert decide(spec, [*states[:2], ended(F, 1, at=NOW), *states[3:]], known, now=NOW) == ()
    (finish,) = decide(spec, [*states[:4], ended(F, 1, at=NOW, index=2)], known, now=NOW)
    assert isinstance(finish, Finish)
    assert finish.reason == "BackoffLimitExceeded"
