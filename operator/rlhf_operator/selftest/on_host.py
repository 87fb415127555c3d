"""Selftest trial on this machine: both halves in one work directory; kills are SIGKILL to a process."""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from rlhf_api.contract.run import RunConfig, on_one_machine
from rlhf_api.contract.status import JobStatus
from rlhf_api.host.reaper import descendants
from rlhf_api.job import RLHFJob
from rlhf_api.roles import Role

from ..local.display.progress import Lines, Step
from ..local.host import Host
from ..local.processes.process import Command, Supervised
from ..local.records import workdir
from ..local.resources.placement import Placement
from ..local.resources.ports import place
from .derived import Overrides
from .left import RunResults, left_by
from .trial import Interrupted
from .watch import Stop, Watch

ENGINE = "EngineCore"
"""Part of the title of vLLM's engine process, which crashes far more often than the server in front of it."""


class OnHost:
    """Runs halves in an empty folder (`trial.Trial`); `derive` builds the job with overrides."""

    def __init__(
        self,
        derive: Callable[[Overrides], RLHFJob],
        folder: Path,
        placed: Placement,
        shown: Lines,
        make: Command,
    ) -> None:
        self._derive, self._folder, self._shown, self._make = derive, folder, shown, make
        self._placed = placed
        self._begun = False

    async def half(self, overrides: Overrides, watch: Watch) -> str:
        job = self._derive(overrides)
        config = RunConfig(
            job=job.metadata.name,
            spec=on_one_machine(job.spec),
            workdir=str(self._folder.resolve()),
            resume=self._begun,
            shared_gpus=self._placed.shared_gpus,
            shared_gpu_count=self._placed.shared_gpu_count,
        )
        earlier = workdir.prepare(
            self._folder, config, resume=self._begun, overwrite=False, accept_changes=True
        )
        before = earlier.status if earlier else None
        self._begun = True
        played = _Played(watch, self._shown)
        host = played.host = Host(config, played, place(config, None), before=before, make=self._make)
        try:
            status = await host.run()
        finally:
            for number in (
                signal.SIGINT,
                signal.SIGTERM,
                signal.SIGHUP,
            ):  # a Ctrl-C between halves ends the command
                asyncio.get_running_loop().remove_signal_handler(number)
        if host.stops > played.requests:
            raise Interrupted
        if watch.failed:
            return watch.failed
        return "" if status.phase == ("Suspended" if watch.stopped else "Succeeded") else host.outcome

    async def read_results(self, models: Sequence[str]) -> RunResults:
        return left_by(self._folder, models)


class _Played:
    """Display of a half (`local.progress.Display`) through which the watch observes it and acts on it."""

    def __init__(self, watch: Watch, shown: Lines) -> None:
        self._watch, self._shown = watch, shown
        self.host: Host | None = None
        self.requests = 0
        """Number of stop requests by the watch."""
        self._restarts = 0

    def event(self, text: str) -> None:
        self._shown.event(text)

    def step(self, step: Step) -> None:
        self._watch.step(int(step["step"]))

    def show(self, status: JobStatus) -> None:
        if self.host is None:
            return
        killed = self._watch.waits_for
        again = killed is not None and status.roles[killed].restarts > self._restarts
        decided = self._watch.decide(status, again=again)
        if isinstance(decided, Role):
            self._restarts = status.roles[decided].restarts
            self._kill(self.host, decided)
        elif decided is not None:
            self._stop(self.host, decided)

    def close(self) -> None:
        self._shown.close()

    def _stop(self, host: Host, stop: Stop) -> None:
        self.event(stop.why)
        self.requests += 1
        host.stop()

    def _kill(self, host: Host, role: Role) -> None:
        process = next(p for p in host.processes if p.process.role is role)
        name, victim = process.process.name, _victim(process)
        if victim is None:
            self._stop(host, self._watch.give_up(f"{name} has no process to kill that is known as its own"))
            return
        self.event(f"killing {name} after step {self._watch.kills[-1].step} (process {victim})")
        with suppress(ProcessLookupError):  # it has just ended by itself, which counts as a kill
            os.kill(victim, signal.SIGKILL)


def _victim(process: Supervised) -> int | None:
    """The role's own process: a trainer's first rank, vLLM's engine; None if there is none."""
    role = process.process.role
    mark = ENGINE if role is Role.GENERATOR else f"rlhf_trainer.roles.{role.value}"
    below = sorted(descendants(process.reaper.pid)) if process.reaper is not None else []
    return next((pid for pid in below if mark in (words := _command(pid)) and "torchrun" not in words), None)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
