"""Decides at which steps of a half each role is killed, and when the run is stopped; pure except for the clock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_api.contract.status import ENDED, JobStatus
from rlhf_api.roles import Role


@dataclass
class Kill:
    """A kill of a role's process or pod after `step`. `seconds`: until it was restarted, all roles were ready, and a
    further step was done; None: that never happened."""

    role: Role
    step: int
    at: float
    seconds: float | None = None


@dataclass(frozen=True)
class Stop:
    """Request to checkpoint and exit, with the reason."""

    why: str


class Watch:
    """Observes every step and status of one half; the trial executes what `decide` returns."""

    def __init__(
        self,
        *,
        victims: Sequence[Role],
        first: int | None,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first`: the checkpoint with which the kills begin; the run is stopped two steps later at the earliest; None:
        it runs to its end. `patience`: deadline of a step in seconds, after which the run is stopped too."""
        self._victims, self._first, self._patience, self._clock = [*victims], first, patience, clock
        self.kills: list[Kill] = []
        self.stopped = False
        """True if the watch, not the user, requested the stop."""
        self.failed = ""
        """Reason for stopping early, if any."""
        self._step, self._since, self._back = 0, clock(), False

    @property
    def waits_for(self) -> Role | None:
        """The role killed last, while a further step is awaited."""
        return self.kills[-1].role if self.kills and self.kills[-1].seconds is None else None

    def step(self, number: int) -> None:
        """Records a finished step."""
        self._step = number
        if self._back:
            self.kills[-1].seconds, self._back = self._clock() - self.kills[-1].at, False
        if self.waits_for is None:
            self._since = self._clock()

    def decide(self, status: JobStatus | None, *, again: bool) -> Role | Stop | None:
        """The role to kill now, or a stop. `again`: the role killed last has been restarted."""
        if self.stopped or (status is not None and status.phase in ENDED):
            return None
        if self._clock() > self._since + self._patience:
            return self.give_up(
                f"no step within {self._patience:.0f} s{' of the kill' if self.waits_for else ''}"
            )
        if status is None or status.phase == "Suspended":  # such as a job that waits in a queue
            return None
        ready = all(role.ready == role.desired for role in status.roles.values())
        saved = status.last_checkpoint.step if status.last_checkpoint else 0
        if self.waits_for is not None:
            self._back = self._back or (ready and again)
        elif ready and self._first is not None and self._step and saved >= self._first:
            if self._victims:
                self._since = self._clock()
                self.kills.append(Kill(self._victims.pop(0), self._step, self._since))
                return self.kills[-1].role
            if saved >= self._first + 2:
                self.stopped = True
                return Stop("stopping in the middle, to resume")
        return None

    def give_up(self, reason: str) -> Stop:
        """Stops the run early."""
        self.stopped, self.failed = True, reason
        return Stop(reason)
