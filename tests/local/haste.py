"""A trainer's silence by how often its host has looked, where the trainer says that it is silent for good: no deadline
passes because the machine is busy, and none has to be waited for."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator import progress_deadline
from rlhf_operator.process_state import ProcessState
from rlhf_operator.progress_deadline import Silence

QUIET, HUNG = "quiet", "hung"
"""Files that the trainer makes: it makes no progress until the user is told of that, or never again."""
TOLD_LOOKS, DUE_LOOKS = 2, 4


class Haste:
    """In place of `silence`: in a silence that is meant the user is told after TOLD_LOOKS, and the deadline is over
    after DUE_LOOKS."""

    def __init__(self, folder: Path) -> None:
        self._marks = folder / QUIET, folder / HUNG
        self._begun = self._progressed = 0.0
        self._looks = 0

    def __call__(
        self, spec: Spec, processes: Sequence[ProcessState], progressed: float, activity: str | None
    ) -> Silence | None:
        found = progress_deadline.silence(spec, processes, progressed, activity)
        begun = max((s.started or 0.0 for s in processes if s.role is Role.TRAINER), default=0.0)
        if begun != self._begun:
            for mark in self._marks:  # of the start before
                mark.unlink(missing_ok=True)
        if (begun, progressed) != (self._begun, self._progressed):
            self._begun, self._progressed, self._looks = begun, progressed, 0
        quiet, hung = (mark.exists() for mark in self._marks)
        self._looks += quiet
        if found is None or self._looks < TOLD_LOOKS:
            return found
        share = 1 if hung and self._looks >= DUE_LOOKS else progress_deadline.TOLD_AT
        # A second more: it is held against a time of just before.
        return replace(found, since=time.monotonic() - share * found.limit - 1)
