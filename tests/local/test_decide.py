"""What the launcher decides, by table: what is seen, what is done."""

from collections.abc import Mapping, Sequence

import pytest
from tests.api.manifests import job

from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.decide import Action, Ended, Finish, Kill, Seen, Start, decide, delay

T, G, R, F = Role.TRAINER, Role.GENERATOR, Role.REWARD, Role.REFERENCE
NOW = 1000.0
SPEC = job("spec.generator.replicas=2", "spec.generator.backoffLimit=2").spec
GANG = job("spec.trainer.replicas=2", "spec.trainer.backoffLimit=1").spec


def up(role: Role, index: int = 0) -> Seen:
    return Seen(role, index, started=0.0, ready=True)


def new(role: Role, index: int = 0) -> Seen:
    return Seen(role, index)


def starting(role: Role, since: float, index: int = 0) -> Seen:
    return Seen(role, index, started=since)


def ended(role: Role, code: int, at: float = 0.0, index: int = 0, ready: bool = True) -> Seen:
    return Seen(role, index, started=0.0, ready=ready, ended=Ended(at, code, f"exited with code {code}: why"))


UP = (up(T), up(G, 0), up(G, 1), up(R), up(F))
FAILED = "exited with code 1: why"


def but(*changed: Seen) -> tuple[Seen, ...]:
    by_name = {s.name: s for s in changed}
    return tuple(by_name.get(s.name, s) for s in UP)


TABLE: list[tuple[str, Spec, Sequence[Seen], Mapping[Role, int], bool, Sequence[Action]]] = [
    (
        "everything is started at first",
        SPEC,
        (new(T), new(G, 0), new(G, 1), new(R), new(F)),
        {},
        False,
        (Start(T, (0,)), Start(G, (0,)), Start(G, (1,)), Start(R, (0,)), Start(F, (0,))),
    ),
    ("nothing to do while all run", SPEC, UP, {}, False, ()),
    ("a generator is started again", SPEC, but(ended(G, 1, index=1)), {}, False, (Start(G, (1,), True),)),
    ("so is one that ended with 0", SPEC, but(ended(G, 0, index=1)), {}, False, (Start(G, (1,), True),)),
    ("after a pause", SPEC, but(ended(G, 1, at=NOW - delay(0) + 0.1)), {}, False, ()),
    ("which grows with restarts", SPEC, but(ended(G, 1, at=NOW - delay(0))), {G: 1}, False, ()),
    (
        "two at once count twice",
        SPEC,
        but(ended(G, 1), ended(G, 1, index=1)),
        {G: 1},
        False,
        (Finish("Failed", "BackoffLimitExceeded", f"generator-1 {FAILED} (started again 2 of 2 times)"),),
    ),
    (
        "until the budget is used up",
        SPEC,
        but(ended(G, 1)),
        {G: 2},
        True,
        (
            Finish(
                "Failed",
                "BackoffLimitExceeded",
                "generator-0 exited with code 1: why (started again 2 of 2 times)",
            ),
        ),
    ),
    ("each role has its own budget", SPEC, but(ended(R, 1)), {G: 2}, False, (Start(R, (0,), True),)),
    (
        "without a budget there is no restart",
        job("spec.reward.backoffLimit=0").spec,
        but(ended(R, 1)),
        {},
        False,
        (Finish("Failed", "BackoffLimitExceeded", f"reward-0 {FAILED} (spec.reward.backoffLimit is 0)"),),
    ),
    (
        "an invalid job fails at once, whatever else ended",
        SPEC,
        but(ended(G, 1), ended(R, 78)),
        {},
        True,
        (Finish("Failed", "InvalidConfiguration", "reward-0 exited with code 78: why"),),
    ),
    (
        "the trainer is done",
        SPEC,
        but(ended(T, 0), ended(R, 1)),
        {},
        False,
        (Finish("Succeeded", "Completed", ""),),
    ),
    (
        "or was stopped on request",
        SPEC,
        but(ended(T, 79)),
        {},
        True,
        (Finish("Suspended", "StoppedOnRequest", ""),),
    ),
    ("a trainer goes on from a checkpoint", SPEC, but(ended(T, 1)), {}, True, (Start(T, (0,), True),)),
    (
        "a trainer without one does not",
        SPEC,
        but(ended(T, 1, at=NOW)),
        {},
        False,
        (
            Finish(
                "Failed",
                "NoCheckpoint",
                f"trainer-0 {FAILED} (before the first checkpoint, so not started again)",
            ),
        ),
    ),
    (
        "a gang ends together",
        GANG,
        (ended(T, 1, index=1), up(T, 0)),
        {},
        True,
        (Kill(T, 0, f"its peer trainer-1 {FAILED}"),),
    ),
    (
        "and starts together",
        GANG,
        (ended(T, 137, at=5.0), ended(T, 1, at=4.0, index=1)),
        {},
        True,
        (Start(T, (0, 1), True),),
    ),
    (
        "its first failure is told",
        GANG,
        (ended(T, 137, at=5.0), ended(T, 1, at=4.0, index=1)),
        {T: 1},
        True,
        (Finish("Failed", "BackoffLimitExceeded", f"trainer-1 {FAILED} (started again 1 of 1 times)"),),
    ),
    ("a peer that is done waits for the others", GANG, (up(T), ended(T, 0, at=NOW, index=1)), {}, True, ()),
    (
        "but not for ever",
        GANG,
        (ended(T, 0, at=NOW - 31), up(T, 1)),
        {},
        True,
        (Finish("Succeeded", "Completed", ""),),
    ),
    (
        "a role that does not answer in time is ended",
        SPEC,
        but(starting(G, NOW - 600)),
        {},
        False,
        (Kill(G, 0, "did not answer within 600 s (spec.generator.startupTimeoutSeconds)"),),
    ),
    ("but not before", SPEC, but(starting(G, NOW - 599)), {}, False, ()),
]


@pytest.mark.parametrize(
    ("spec", "seen", "restarts", "resumable", "wanted"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_decisions(
    spec: Spec, seen: Sequence[Seen], restarts: Mapping[Role, int], resumable: bool, wanted: Sequence[Action]
) -> None:
    assert decide(spec, seen, restarts, resumable=resumable, now=NOW) == tuple(wanted)
