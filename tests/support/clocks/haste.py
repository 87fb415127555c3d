"""A trainer's silence by how often its host has looked, where the trainer says that it is silent for good: no deadline
passes because the machine is busy, and none has to be waited for.
`python -m tests.support.clocks.haste` is `rlhf` so."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.faults import HUNG, QUIET

from rlhf_api.roles import Role
from rlhf_api.spec import Spec
from rlhf_operator.cli import main
from rlhf_operator.local import host
from rlhf_operator.supervision import progress_deadline
from rlhf_operator.supervision.process_state import ProcessState
from rlhf_operator.supervision.progress_deadline import Silence

REAL_LOOKS = 10
"""Looks at a real trainer, two in each half second: its other ranks get to where they wait for one that hangs."""


class Haste:
    """In place of `silence`: in a silence that is meant, by files that the trainer makes in `folder`, the user is told
    after `looks`, and the deadline is over after twice as many. QUIET: it lasts until the user is told; HUNG: for ever.
    """

    def __init__(self, folder: Path, checks: int) -> None:
        self._marks, self._needed = (folder / QUIET, folder / HUNG), checks
        self._begun = self._progressed = 0.0
        self._observations = 0

    def __call__(
        self, spec: Spec, processes: Sequence[ProcessState], progressed: float, activity: str | None
    ) -> Silence | None:
        silence = progress_deadline.silence(spec, processes, progressed, activity)
        begun = max((s.started or 0.0 for s in processes if s.role is Role.TRAINER), default=0.0)
        if begun != self._begun:
            for mark in self._marks:  # of the start before
                mark.unlink(missing_ok=True)
        if (begun, progressed) != (self._begun, self._progressed):
            self._begun, self._progressed, self._observations = begun, progressed, 0
        quiet, hung = (mark.exists() for mark in self._marks)
        self._observations += quiet
        if silence is None or self._observations < self._needed:
            return silence
        share = 1 if hung and self._observations >= 2 * self._needed else progress_deadline.TOLD_AT
        # A second more: it is held against a time of just before.
        return replace(silence, since=time.monotonic() - share * silence.limit - 1)


if __name__ == "__main__":
    host.silence = Haste(Path(sys.argv[sys.argv.index("--workdir") + 1]), REAL_LOOKS)
    sys.exit(main())
