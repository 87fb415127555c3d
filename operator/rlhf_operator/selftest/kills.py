"""Watches one half of the run: kills each role once at a step that is done, and stops the run when all are back."""

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.roles import Role
from rlhf_api.status import JobStatus

from ..local.host import Host
from ..local.processes import Supervised
from ..local.progress import Lines, Step
from ..local.reaper import descendants

ENGINE = "EngineCore"
"""In the title of vLLM's engine process, which dies far more often than the server in front of it."""


@dataclass
class Kill:
    """SIGKILL to a role after `step`. `seconds` until it was started again, all were ready, and a further step was
    done; None: that never came."""

    role: Role
    step: int
    at: float
    seconds: float | None = None


class Watch:
    """The display of a half (`local.progress.Display`), through which it sees every step and status."""

    def __init__(self, shown: Lines, *, victims: Sequence[Role], first: int | None, patience: float) -> None:
        """`first`: the checkpoint with which the kills begin, two steps after which at the earliest the run is stopped;
        None: it goes to its end. `patience`: seconds for a step, after which the run is stopped too."""
        self._shown, self._victims, self._first, self._patience = shown, [*victims], first, patience
        self.host: Host | None = None
        self.kills: list[Kill] = []
        self.asked = 0
        """Number of times that this, and no user, asked the run to stop."""
        self.failed = ""
        """Reason for which it did so before the time, if any."""
        self._step, self._since, self._restarts, self._back = 0, time.monotonic(), 0, False

    def event(self, text: str) -> None:
        self._shown.event(text)

    def step(self, step: Step) -> None:
        self._step = int(step["step"])
        if self._back:
            self.kills[-1].seconds, self._back = time.monotonic() - self.kills[-1].at, False
        if not self._waits:
            self._since = time.monotonic()

    def show(self, status: JobStatus) -> None:
        if self.asked or self.host is None or status.phase in ("Succeeded", "Failed", "Suspended"):
            return
        ready = all(role.ready == role.desired for role in status.roles.values())
        saved = status.last_checkpoint.step if status.last_checkpoint else 0
        if time.monotonic() > self._since + self._patience:
            self.failed = f"no step within {self._patience:.0f} s{' of the kill' if self._waits else ''}"
            self._stop(self.host, self.failed)
        elif self._waits:
            again = status.roles[self.kills[-1].role].restarts > self._restarts
            self._back = self._back or (ready and again)
        elif ready and self._first is not None and self._step and saved >= self._first:
            if self._victims:
                role = self._victims.pop(0)
                self._restarts = status.roles[role].restarts
                self._kill(self.host, role)
            elif saved >= self._first + 2:
                self._stop(self.host, "stopping in the middle, to resume")

    def close(self) -> None:
        self._shown.close()

    @property
    def _waits(self) -> bool:
        """The last kill has not been recovered from."""
        return bool(self.kills) and self.kills[-1].seconds is None

    def _stop(self, host: Host, why: str) -> None:
        self.event(why)
        self.asked += 1
        host.stop()

    def _kill(self, host: Host, role: Role) -> None:
        process = next(p for p in host.processes if p.process.role is role)
        self._since = time.monotonic()
        self.kills.append(Kill(role, self._step, self._since))
        victim = _victim(process)
        if victim is None:
            self.failed = f"{process.process.name} has no process to kill that is known as its own"
            self._stop(host, self.failed)
            return
        self.event(f"killing {process.process.name} after step {self._step} (process {victim})")
        with suppress(ProcessLookupError):  # then it ended by itself, which is noticed like a kill
            os.kill(victim, signal.SIGKILL)


def _victim(process: Supervised) -> int | None:
    """The role's own process: a trainer's first rank, vLLM's engine; None where there is none."""
    role = process.process.role
    mark = ENGINE if role is Role.GENERATOR else f"rlhf_trainer.roles.{role.value}"
    below = sorted(descendants(process.reaper.pid)) if process.reaper is not None else []
    return next((pid for pid in below if mark in (words := _command(pid)) and "torchrun" not in words), None)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
