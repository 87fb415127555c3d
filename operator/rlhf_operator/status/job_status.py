"""Builds a job's status from process states and the trainer's report; pure."""

import datetime
import math
import signal
from collections.abc import Mapping, Sequence

from rlhf_api.contract.report import LARGEST_COUNT, STARTING, HealthStatus, TrainerStatus
from rlhf_api.contract.run import EXIT_SUSPENDED, process_name, roles_of
from rlhf_api.contract.status import (
    ENDED,
    Condition,
    FailureStatus,
    JobStatus,
    Phase,
    RoleStatus,
)
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ..console.text import time_text
from ..supervision.exit_reasons import is_consequence
from ..supervision.process_state import SIGTERMED, Ended, Finish, ProcessState
from .condition import LONGEST, ConditionType, condition, with_times
from .role_status import ready_words, role_status

NO_PROGRESS = "NoProgress"
"""Reason of the Stalled condition for a trainer without progress."""
_CONDITION_OF: dict[Phase, ConditionType] = {
    "Succeeded": "Complete",
    "Failed": "Failed",
    "Suspended": "Suspended",
}
_LONGEST = 2048
"""Maximum length of a failure's reason and log, in characters."""
_TOLD = (0, EXIT_SUSPENDED, SIGTERMED, 128 + signal.SIGKILL)
"""Exit codes of processes that are told to end."""
_MEMBERS = 128
_FORESEEABLE = 10 * 365 * 86400.0
"""Largest remaining time that a status holds, in seconds; a longer one is left out."""


def job_status(
    spec: Spec,
    processes: Sequence[ProcessState],
    restarts: Mapping[Role, int],
    trainer: TrainerStatus | None,
    *,
    before: JobStatus,
    now: datetime.datetime,
    finish: Finish | None = None,
    stall: str | None = None,
    ended: Sequence[ProcessState] = (),
) -> JobStatus:
    """The new status. `before` is the last one: times and values that still hold are kept. `stall`: why the trainer
    makes no progress, '' if it does; None: the status gets no Stalled condition. `ended`: processes whose ends may
    have been reported late, those that are replaced or gone among them."""
    stamp = time_text(now)
    roles = {
        role: role_status(spec, role, processes, restarts, over=finish is not None).model_copy(
            update={"last_failure": _last_failure(role, processes, ended, before.roles.get(role), stamp)}
        )
        for role in roles_of(spec)
    }
    phase: Phase = finish.phase if finish else _phase(processes, trainer, before.phase)
    message = finish.message if finish else _waiting_for(roles)
    conditions = [_roles_ready(roles, finish, stamp)]
    if stall is not None:
        conditions.append(stalled(stall, stamp))
    if finish is not None:
        conditions.append(condition(_CONDITION_OF[phase], "True", finish.reason, message, stamp))
    status = before.model_copy(
        update={
            "phase": phase,
            "message": message[:LONGEST],
            # As of a Job of Kubernetes: one that only waits has none.
            "start_time": before.start_time if phase == "Suspended" else before.start_time or stamp,
            "completion_time": stamp if phase in ENDED else None,
            "estimated_end": None,
            "activity": trainer.activity if trainer and not finish else None,
            "roles": roles,
            "restarts": sum(role.restarts for role in roles.values()),
            "generators": (),
            "conditions": with_times(conditions, before.conditions),
        }
    )
    if trainer is not None:
        status = _with_progress(status, trainer, now, over=finish is not None)
    if status.health is not None:
        conditions = [*conditions, _healthy(status, status.health, stamp)]
        status = status.model_copy(update={"conditions": with_times(conditions, before.conditions)})
    if phase == "Succeeded":  # the trainer may have ended before its last step was seen
        status = status.model_copy(update={"step": status.total_steps})
    return status


def first_status(spec: Spec, before: JobStatus | None) -> JobStatus:
    """Initial status; `before` is the last status of the run that this one resumes."""
    checkpoint = before.last_checkpoint if before else None
    step = checkpoint.step if checkpoint else 0
    return JobStatus.model_validate(
        {"phase": "Pending", "totalSteps": spec.steps, "step": step, "lastCheckpoint": checkpoint}
    )


def _with_progress(
    status: JobStatus, trainer: TrainerStatus, now: datetime.datetime, *, over: bool
) -> JobStatus:
    left = (trainer.seconds_per_step or math.nan) * max(trainer.total_steps - trainer.step, 0)
    # NaN compares false.
    end = time_text(now + datetime.timedelta(seconds=left)) if 0 <= left < _FORESEEABLE and not over else None
    return status.model_copy(
        update={
            "estimated_end": end,
            "step": trainer.step if _knows_its_step(trainer, status) else status.step,
            "total_steps": trainer.total_steps,
            "reward": _figure(trainer.reward_mean, status.reward),
            "kl": _figure(trainer.kl_mean, status.kl),
            "loss": _figure(trainer.loss, status.loss),
            "tokens_per_second": _figure(trainer.tokens_per_second, status.tokens_per_second),
            "weight_version": trainer.weight_version,
            "staleness": _figure(trainer.staleness, status.staleness),
            "staleness_max": _count(trainer.staleness_max, status.staleness_max),
            "staleness_bound": status.staleness_bound
            if trainer.staleness_bound is None
            else trainer.staleness_bound,
            "trainer_idle": _figure(trainer.trainer_idle, status.trainer_idle),
            "generator_idle": _figure(trainer.generator_idle, status.generator_idle),
            "responses_continued": _count(trainer.responses_continued, status.responses_continued),
            "importance_effective": _figure(trainer.importance_effective, status.importance_effective),
            "queue": trainer.queue,
            "unscored": trainer.unscored,
            "last_checkpoint": trainer.last_checkpoint or status.last_checkpoint,
            "ledger": trainer.ledger or status.ledger,
            "overlong": trainer.overlong or status.overlong,
            "trackers_failed": trainer.trackers_failed,
            "health": trainer.health or status.health,
            "generators": tuple(m for m in trainer.members if m.role is Role.GENERATOR)[:_MEMBERS],
        }
    )


def _knows_its_step(trainer: TrainerStatus, before: JobStatus) -> bool:
    """False of a trainer that has not read the run's checkpoint yet: its step is 0."""
    return trainer.step > 0 or trainer.last_checkpoint is not None or before.last_checkpoint is None


def _figure(value: float | None, before: float | None) -> float | None:
    """A number with four digits, or None for NaN and infinities, which JSON lacks. A trainer that has just resumed has
    made no step yet: the value before is kept."""
    if value is None:
        return before
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _count(value: float | None, before: int | None) -> int | None:
    """As `_figure`, of what is whole though the trainer's metrics have it as a float."""
    if value is None:
        return before
    return round(value) if 0 <= value <= LARGEST_COUNT else None


def _phase(processes: Sequence[ProcessState], trainer: TrainerStatus | None, before: Phase) -> Phase:
    """The last report of a trainer that has ended keeps a job `Running` and makes none so: it may be of the pod that
    was there before the job was suspended."""
    if all(process.started is None for process in processes):
        return "Pending"
    if before != "Running" and any(p.role is Role.TRAINER and p.ended for p in processes):
        return "Provisioning"
    return "Provisioning" if trainer is None or trainer.activity.startswith(STARTING) else "Running"


def _last_failure(
    role: Role,
    processes: Sequence[ProcessState],
    late: Sequence[ProcessState],
    before: RoleStatus | None,
    stamp: str,
) -> FailureStatus | None:
    """The first of a role's present failures that does not only follow from another's (a cluster tells whole seconds);
    without any failure, the one that the status has. The cause of one that follows may be reported after it."""
    previous = before.last_failure if before else None
    failed = [s for s in processes if s.role is role and s.ended and _left_a_log(s.ended)]
    failure = _first(failed, stamp) or previous
    if failure and is_consequence(failure.reason):
        causes = [s for s in late if s.role is role and s.ended and _caused(failure, s, s.ended)]
        failure = _first(causes, stamp) or failure
    return (
        previous
        if previous and failure and previous == failure.model_copy(update={"time": previous.time})
        else failure
    )


def _first(failed: Sequence[ProcessState], stamp: str) -> FailureStatus | None:
    ends = [
        (is_consequence(s.ended.reason), s.ended.at, i, s, s.ended) for i, s in enumerate(failed) if s.ended
    ]
    if not ends:
        return None
    *_, process, end = min(ends)
    return FailureStatus(
        process=process.name,
        node=process.node,
        time=stamp,
        reason=end.reason[:_LONGEST],
        log=end.log[-_LONGEST:],
    )


def _caused(failure: FailureStatus, other: ProcessState, end: Ended) -> bool:
    """True if another process of the gang or replica failed by itself, even if it was told to end within the second,
    which leaves one of the codes of `_TOLD`."""
    first = process_name(other.role, other.index, 0)
    gang = other.role.value if other.role is Role.TRAINER else first
    same = failure.process == first or failure.process.startswith(f"{gang}-")
    return same and bool(end.log) and end.code not in _TOLD and not is_consequence(end.reason)


def _left_a_log(end: Ended) -> bool:
    return bool(end.log) and end.code not in (0, EXIT_SUSPENDED) and not end.disrupted


def _waiting_for(roles: Mapping[Role, RoleStatus]) -> str:
    waiting = [f"{role.value} {ready_words(s)}" for role, s in roles.items() if _is_waited_for(role, s)]
    return f"waiting for {', '.join(waiting)}" if waiting else ""


def _is_waited_for(role: Role, status: RoleStatus) -> bool:
    """Sandboxes are replaced all the time: only where none is there does anything wait."""
    return status.ready < (1 if role is Role.SANDBOX else status.desired)


def _roles_ready(roles: Mapping[Role, RoleStatus], finish: Finish | None, stamp: str) -> Condition:
    if finish is not None:
        return condition("RolesReady", "False", "JobEnded", "", stamp)
    waiting = _waiting_for(roles)
    if waiting:
        return condition("RolesReady", "False", "RolesNotReady", waiting, stamp)
    return condition("RolesReady", "True", "AllRolesReady", "", stamp)


def _healthy(status: JobStatus, newest: HealthStatus, stamp: str) -> Condition:
    """The Healthy condition: true again after a step that follows the one that broke a rule."""
    if status.step > newest.step:
        return condition("Healthy", "True", "RulesHold", "", stamp)
    return condition("Healthy", "False", newest.reason, newest.message, stamp)


def stalled(problem: str, stamp: str) -> Condition:
    """The Stalled condition of a trainer that makes no progress; see `progress_deadline.Silence`."""
    if problem:
        return condition("Stalled", "True", NO_PROGRESS, problem, stamp)
    return condition("Stalled", "False", "NotStalled", "", stamp)


def new_breach(newest: HealthStatus, before: HealthStatus | None) -> bool:
    """True if the breach is not the continuation of one that was reported already."""
    named = ("since", "reason", "action", "rollbacks")
    return before is None or any(getattr(before, name) != getattr(newest, name) for name in named)
