"""Progress deadline of the trainer (`spec.trainer.progressDeadlineSeconds`): tells a hang from a long step; pure."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_api.contract.report import TrainerStatus
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ..console.text import time_text
from .process_state import SIGTERMED, Ended, ProcessState

TOLD_AT = 1 / 3
"""Share of the deadline after which a trainer without progress is reported."""
FIELD = "spec.trainer.progressDeadlineSeconds"


@dataclass(frozen=True)
class Silence:
    """Time since the last sign of progress of trainers that run; seconds, on the clock of their processes."""

    since: float
    limit: int
    activity: str | None
    """The trainer's last reported activity; None if it has reported nothing since its start."""

    def message(self, now: float, clock: datetime.datetime) -> str:
        """Message to the user while the silence lasts; empty in the first third of the deadline, and where the trainer
        has not answered yet. `clock`: the time of day at `now`."""
        if self.activity is None or now < self.since + TOLD_AT * self.limit:
            return ""
        since, due = (
            time_text(clock + datetime.timedelta(seconds=at - now))
            for at in (self.since, self.since + self.limit)
        )
        return (
            f"the trainer has made no progress since {since}, last seen {self.activity}; "
            f"it is started again at {due} ({FIELD})"
        )

    def ended(self, now: float) -> Ended | None:
        """The end that the trainers are given; None before their deadline."""
        due = self.since + self.limit
        if now < due:
            return None
        last = f", last seen {self.activity}" if self.activity else ""
        return Ended(due, SIGTERMED, f"made no progress for {self.limit} s{last} ({FIELD})")


def shows_progress(report: TrainerStatus, count: int | None) -> bool:
    """True if a new report shows progress since the one with this `progress_count`; a report without a count, from a
    trainer of an earlier release, always does."""
    return report.progress_count is None or report.progress_count != count


def silence(
    spec: Spec, processes: Sequence[ProcessState], progressed: float, activity: str | None
) -> Silence | None:
    """The present silence of the trainers, whose last report of progress came at `progressed`; None where none runs.
    Those that have reported nothing since their start have at least `startupTimeoutSeconds`."""
    begun = [
        s.started for s in processes if s.role is Role.TRAINER and s.ended is None and s.started is not None
    ]
    if not begun:
        return None
    limit, since = spec.trainer.progress_deadline_seconds, max(begun)
    if progressed <= since:
        limit = max(limit, spec.trainer.startup_timeout_seconds)
    return Silence(max(progressed, since), limit, activity)
