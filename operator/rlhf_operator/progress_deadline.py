"""Progress deadline of the trainer (`spec.trainer.progressDeadlineSeconds`): tells a hang from a long step; pure."""

from collections.abc import Sequence

from rlhf_api.report import TrainerStatus
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from .job_status import STARTING
from .process_state import SIGTERMED, Ended, ProcessState

_UNCOUNTED = (STARTING, "exporting")
"""Activities in which a library reads or writes whole models, for any time and without a sign."""


def shows_progress(report: TrainerStatus, count: int | None) -> bool:
    """True if a report just received shows progress since the one with this `progress_count`.

    Any report does in activities without signs, and any of an earlier release, which counts none.
    """
    return report.activity in _UNCOUNTED or report.progress_count is None or report.progress_count != count


def hang(
    spec: Spec, processes: Sequence[ProcessState], progressed: float, now: float, activity: str | None
) -> Ended | None:
    """The end due to trainers that have made no progress since `progressed`; None before their deadline. Those that
    have reported nothing since their start have at least `startupTimeoutSeconds`. `activity`: the last one reported."""
    trainers = [s for s in processes if s.role is Role.TRAINER and s.ended is None]
    begun = [s.started for s in trainers if s.started is not None]
    if not begun:
        return None
    limit, since = spec.trainer.progress_deadline_seconds, max(begun)
    if progressed <= since:
        limit = max(limit, spec.trainer.startup_timeout_seconds)
    due = max(progressed, since) + limit
    if now < due:
        return None
    last = f", last seen {activity}" if activity else ""
    reason = f"made no progress for {limit} s{last} (spec.trainer.progressDeadlineSeconds)"
    return Ended(due, SIGTERMED, reason)
