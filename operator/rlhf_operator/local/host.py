"""Control loop that runs a job on this machine: observe, decide, act, report, until the job is over."""

import asyncio
import contextlib
import datetime
import itertools
import secrets
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rlhf_api.contract.run import EXIT_SUSPENDED, Process, RunConfig, command, listens
from rlhf_api.contract.status import JobStatus
from rlhf_api.host.job_files import provided
from rlhf_api.host.reaper import become_subreaper
from rlhf_api.roles import Role

from ..status.job_status import first_status, job_status
from ..supervision.budget import Restarts, record_restart, totals
from ..supervision.process_state import Action, Finish, Kill, Start
from ..supervision.progress_deadline import Silence, silence
from ..supervision.restart_policy import decide
from ..supervision.role_client import ControlClient
from .display.metrics import Evaluations, Metrics
from .display.progress import Display
from .metrics_server import MetricsServer
from .processes.process import Command, Supervised, end_the_hung
from .processes.stopping import Tree
from .processes.temporary import temporary
from .records import workdir
from .trainer import Trainer

TICK_SECONDS = 0.5
GRACE_SECONDS = 30.0
"""Grace period of the trainer after a stop request, seconds, plus the time of two steps."""
_GRACE_LIMIT = 600.0
STANDSTILL_SECONDS = 30.0
"""Duration of one turn of the loop, seconds, above which this process must have been paused, and maybe the others
too."""


class Host:
    """One run. It owns this process: its signals, and all descendants since its start, which it ends before it
    returns."""

    def __init__(
        self,
        config: RunConfig,
        display: Display,
        places: Sequence[Process],
        *,
        before: JobStatus | None = None,
        make: Command = command,
        metrics_port: int | None = None,
    ) -> None:
        """`places`: processes, trainers first; `before`: the status of the run to resume; `metrics_port` None: any free
        port."""
        self.config, self.display, self.make = config, display, make
        self.folder = Path(config.workdir)
        self.processes = [Supervised(place, self.folder / workdir.LOGS) for place in places]
        self.status = first_status(config.spec, before)
        self.trainer = Trainer(self.processes[0], display, self.status.last_checkpoint)
        self.outcome = ""
        roles = before.roles if before else {}
        self.restarts = {role: Restarts(total=status.restarts) for role, status in roles.items()}
        self.stops = 0
        """Number of stop requests so far."""
        self._ends: list[str] = []
        """Ends of processes that were not shown yet: what is done about them is decided first."""
        self._last_turn = time.monotonic()
        self._tree = Tree(self.processes)
        self._token = secrets.token_hex(32)
        self._variables: dict[str, str] = {}
        self._wake = asyncio.Event()
        self._place = self.folder.stat()
        self._file = workdir.StatusFile(self.folder / workdir.STATUS, display.event)
        self._metrics = Metrics(self.folder / workdir.METRICS)
        self._evaluations = Evaluations(self.folder / workdir.EVALUATIONS)
        self._server = MetricsServer(config.job, metrics_port)

    async def run(self) -> JobStatus:
        """Runs the job to its end and returns the last status; no process of it is left then. Raises InvalidJob, before
        anything is started, if the metrics port is taken."""
        async with self._server.serving() as url:
            self.display.event(f"metrics on {url}")
            spec, tell = self.config.spec, self.display.event
            with provided(spec.workspace.files), temporary(self.folder, spec.env, tell) as variables:
                self._variables = variables
                return await self._run()

    def stop(self) -> None:
        """Requests a checkpoint and exit; the second call ends the run at once. Same as Ctrl-C, on the loop's
        thread.
        """
        self.stops += 1
        self._wake.set()

    async def _run(self) -> JobStatus:
        become_subreaper()
        self._listen_to_signals()
        workdir.write_config(self.folder, self.config)
        finish = Finish("Failed", "LauncherError", "`rlhf run` itself failed")
        try:
            async with ControlClient(self._token) as control:
                watching = asyncio.create_task(end_the_hung(self.processes, control))
                try:
                    finish = await self._loop(control)
                except OSError as error:  # of files and processes that it cannot make
                    finish = Finish("Failed", "LauncherError", f"`rlhf run` cannot go on: {error}")
                finally:
                    watching.cancel()
        finally:
            await self._tree.stop(lambda: self.stops > 1)
            self.outcome = finish.message
            self._tell_ends(besides=finish)
            self._show_steps()
            self._report(finish)
        return self.status

    async def _loop(self, control: ControlClient) -> Finish:
        self._last_turn = time.monotonic()
        while not self.stops:
            self._move_deadlines(time.monotonic())
            await self._observe(control)
            if message := self._tree.remaining():
                return Finish("Failed", "ProcessesRemain", message)
            if message := workdir.moved(self.folder, self._place):
                for process in self.processes:  # before one saves into a new folder of this name
                    process.kill()
                return Finish("Failed", "WorkDirectoryGone", message)
            for action in self._decide(time.monotonic()):
                if isinstance(action, Finish):
                    return action
                self._tell_ends()
                self._act(action)
            self._tell_ends()
            await self.trainer.tell_members(control, self.processes)
            self._report()
            await self._pause()
        return await self._stop(control)

    def _move_deadlines(self, now: float) -> None:
        """Moves all deadlines by the time for which this process was paused, by Ctrl-Z or a scheduler that suspends
        jobs: the job's processes may have made no progress meanwhile."""
        lost, self._last_turn = now - self._last_turn, now
        if lost <= STANDSTILL_SECONDS:
            return
        self.display.event(f"this process was paused for {lost:.0f} s")
        self.trainer.progressed += lost
        for process in self.processes:
            if process.started is not None:
                process.started += lost

    def _decide(self, now: float) -> Sequence[Action]:
        """The restart policy's actions; a trainer that hangs is killed first, and is restarted when that has ended
        it."""
        states, silence = [process.read_state() for process in self.processes], self._silence()
        end = silence.ended(now) if silence else None
        if end is None:
            return decide(self.config.spec, states, self.restarts, now=now, step=self.status.step)
        return [Kill(s.role, s.index, end.reason) for s in states if s.role is Role.TRAINER and not s.ended]

    def _silence(self) -> Silence | None:
        """The trainer's present silence; None if none runs."""
        states, report = [process.read_state() for process in self.processes], self.trainer.status
        return silence(self.config.spec, states, self.trainer.progressed, report.activity if report else None)

    async def _observe(self, control: ControlClient) -> None:
        for process in self._tree.newly_ended():
            if not _ended_well(process):
                self._ends.append(f"{process.process.name} {process.ended.reason if process.ended else ''}")
        waiting = [p for p in self.processes if p.running and not p.ready and listens(p.process)]
        answers = await asyncio.gather(*(control.healthy(p.address) for p in waiting))
        for process in itertools.compress(waiting, answers):
            process.ready = True
            self.display.event(f"{process.process.name} is ready")
        for process in self.processes:
            if process.running and not listens(process.process):
                first = self._first(process.process)
                process.ready = first.running and first.ready
            process.log.bound()
        self._show_steps()
        await self.trainer.read(control)

    def _act(self, action: Start | Kill) -> None:
        if isinstance(action, Kill):
            (process,) = self._of(action.role, action.index, action.rank)
            process.kill(action.why)
            return
        if action.again:
            now, spec = time.monotonic(), self.config.spec
            self.restarts = record_restart(
                spec, self.restarts, action.role, now, counts=action.counts, cause=action.cause
            )
            if action.role is Role.TRAINER:
                self.config = self.config.model_copy(update={"resume": True})
                workdir.write_config(self.folder, self.config)
        for process in (each for index in action.indices for each in self._of(action.role, index)):
            process.start(
                self.config, self.folder / workdir.CONFIG, self._token, self.make, more=self._variables
            )
            self.display.event(f"{process.process.name} {'started again' if action.again else 'started'}")

    def _of(self, role: Role, index: int, rank: int | None = None) -> list[Supervised]:
        """The processes of one replica, or the one with this rank."""
        return [
            each
            for each in self.processes
            if (each.process.role, each.process.index) == (role, index)
            if rank is None or each.process.rank == rank
        ]

    def _first(self, process: Process) -> Supervised:
        """The first process of this one's group, which serves its API."""
        if process.role is Role.TRAINER:
            return self.processes[0]
        return self._of(process.role, process.index, 0)[0]

    async def _stop(self, control: ControlClient) -> Finish:
        """Requests a checkpoint and exit of the trainer; waits for its grace period, unless another stop is
        requested.
        """
        if self.trainer.answers:
            self.display.event("stopping after a checkpoint (Ctrl-C again to stop at once)")
            status, stop_requested = self.trainer.status, False
            per_step = status.seconds_per_step or 0.0 if status else 0.0
            deadline = time.monotonic() + min(GRACE_SECONDS + 2 * per_step, _GRACE_LIMIT)
            while self.trainer.process.running and time.monotonic() < deadline and self.stops < 2:
                # Again where it is too busy to answer.
                stop_requested = stop_requested or await self.trainer.ask_to_stop(control)
                await self._observe(control)
                self._tell_ends()
                self._report()
                await self._pause(TICK_SECONDS / 5)  # to read its last checkpoint before it ends
        ended, saved = self.trainer.process.ended, self.status.last_checkpoint
        if ended is not None and ended.code == 0:
            return Finish("Succeeded", "Completed", "")
        message = "stopped on request"
        if ended is None or ended.code != EXIT_SUSPENDED:
            newest = f"the newest checkpoint is of step {saved.step}" if saved else "nothing is saved yet"
            message += f", without a last checkpoint; {newest}"
        return Finish("Suspended", "StoppedOnRequest", message)

    def _tell_ends(self, besides: Finish | None = None) -> None:
        """Shows the ends of processes since the last call, but one that is the run's outcome, which is shown last."""
        for line in self._ends:
            if besides is None or line not in besides.message:
                self.display.event(line)
        self._ends.clear()

    def _show_steps(self) -> None:
        for step in self._metrics.new():
            self.display.step(step)
        for line in self._evaluations.new_lines():
            self.display.event(line)

    def _report(self, finish: Finish | None = None) -> None:
        now, silence = datetime.datetime.now(datetime.UTC), None if finish else self._silence()
        stall = silence.message(time.monotonic(), now) if silence else ""
        self.trainer.tell_stall(stall)
        self.status = job_status(
            self.config.spec,
            [process.read_state() for process in self.processes],
            totals(self.restarts),
            self.trainer.status,
            before=self.status,
            now=now,
            finish=finish,
            stall=stall,
        )
        self._file.put(self.status, last=finish is not None)
        self._server.put(self.status)
        self.display.show(self.status)

    async def _pause(self, seconds: float = TICK_SECONDS) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    def _listen_to_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Stays ignored if our parent ignored it (nohup, a shell's background job).
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self.stop)


def _ended_well(process: Supervised) -> bool:
    """True if the process ended as a trainer does at the end of a run."""
    code = process.ended.code if process.ended else None
    return process.process.role is Role.TRAINER and code in (0, EXIT_SUSPENDED)
