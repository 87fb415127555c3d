"""Standard Kubernetes conditions of a job's status: their types, how one is made, read and kept; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from rlhf_api.contract.status import CORRECTABLE, Condition, JobStatus

ConditionType = Literal[
    "Complete",
    "DataChanged",
    "Failed",
    "Healthy",
    "PodsScheduled",
    "Ready",
    "RolesReady",
    "SlowNetwork",
    "SpecChanged",
    "Stalled",
    "Suspended",
]
LONGEST = 1024
"""Maximum length of a message, in characters."""


def condition(kind: ConditionType, status: str, reason: str, message: str, stamp: str) -> Condition:
    """A condition whose transition time is now."""
    return Condition.model_validate(
        {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message[:LONGEST],
            "lastTransitionTime": stamp,
        }
    )


def own_conditions(status: Mapping[str, Any]) -> list[Any] | None:
    """A stored status's conditions of our types; other controllers may have theirs there."""
    stored_conditions = status.get("conditions")
    return stored_conditions and [
        each for each in stored_conditions if each.get("type") in get_args(ConditionType)
    ]


def is_true(status: JobStatus, kind: str) -> bool:
    """True if the condition of this type has status True."""
    return any(c.type == kind and c.status == "True" for c in status.conditions)


def reason(status: JobStatus, kind: str) -> str:
    """Reason of the condition of this type; empty without one."""
    return next((c.reason for c in status.conditions if c.type == kind), "")


def refused(status: JobStatus) -> bool:
    """True if the job ended because its spec, or a pod made of it, was invalid."""
    return reason(status, "Failed") in CORRECTABLE


def observed(status: JobStatus, generation: int) -> JobStatus:
    """The status with a later generation as observed; nothing else changes."""
    conditions = tuple(c.model_copy(update={"observed_generation": generation}) for c in status.conditions)
    return status.model_copy(update={"observed_generation": generation, "conditions": conditions})


def with_times(now: Sequence[Condition], before: Sequence[Condition]) -> tuple[Condition, ...]:
    """The conditions, each with the time of its last change of status."""
    since = {(c.type, c.status): c.last_transition_time for c in before}
    return tuple(
        c.model_copy(update={"last_transition_time": since.get((c.type, c.status), c.last_transition_time)})
        for c in now
    )
