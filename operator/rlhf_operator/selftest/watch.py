"""Decides at which steps of a half each role is killed, and when the run is stopped; pure but for the clock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlhf_api.roles import Role
from rlhf_api.status import JobStatus


@dataclass
class Kill:
    """The end of a role's process or pod after `step`. `seconds` until it was started again, all were ready, and a
    further step was done; None: that never came."""

    role: Role
    step: int
    at: float
    seconds: float | None = None


@dataclass(frozen=True)
class Stop:
    """The run is to save a checkpoint and end, for this reason."""

    why: str


class Watch:
    """Sees every step and status of one half. Where it runs is the trial's business, which does what `decide` says."""

    def __init__(
        self,
        *,
        victims: Sequence[Role],
        first: int | None,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`first`: the checkpoint with which the kills begin, two steps after which at the earliest the run is stopped;
        None: it goes to its end. `patience`: seconds for a step, after which the run is stopped too."""
        self._victims, self._first, self._patience, self._clock = [*victims], first, patience, clock
        self.kills: list[Kill] = []
        self.stopped = False
        """This, and no user, asked the run to stop."""
        self.failed = ""
        """Reason for which it did so before the time, if any."""
        self._step, self._since, self._back = 0, clock(), False

    @property
    def waits_for(self) -> Role | None:
        """The role that was killed last, while a further step is still to come."""
        return self.kills[-1].role if self.kills and self.kills[-1].seconds is None else None

    def step(self, number: int) -> None:
        """A step is done."""
        self._step = number
        if self._back:
            self.kills[-1].seconds, self._back = self._clock() - self.kills[-1].at, False
        if self.waits_for is None:
            self._since = self._clock()

    def decide(self, status: JobStatus | None, *, again: bool) -> Role | Stop | None:
        """The role to kill now, or the end. `again`: the one that was killed last has been started again."""
        if self.stopped or (status is not None and status.phase in ("Succeeded", "Failed")):
            return None
        if self._clock() > self._since + self._patience:
            return self.give_up(
                f"no step within {self._patience:.0f} s{' of the kill' if self.waits_for else ''}"
            )
        if status is None or status.phase == "Suspended":  # as a job is that waits in a queue
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

    def give_up(self, why: str) -> Stop:
        """The run is stopped before its time."""
        self.stopped, self.failed = True, why
        return Stop(why)
