"""The host's state of the trainer: its reports, and the membership and requests sent to it."""

import time
from collections.abc import Sequence

from rlhf_api.contract.report import STORE_FAILS, CheckpointStatus, HealthStatus, TrainerStatus
from rlhf_api.contract.run import Member, Membership, listens
from rlhf_api.roles import Role

from ..status.job_status import new_breach
from ..supervision.progress_deadline import shows_progress
from ..supervision.role_client import ControlClient, Unreadable
from .display.progress import Display
from .processes.process import Supervised


class Trainer:
    """The first trainer process, over all its starts."""

    def __init__(self, process: Supervised, display: Display, checkpoint: CheckpointStatus | None) -> None:
        """`checkpoint`: the newest one known before its start."""
        self.process = process
        self.status: TrainerStatus | None = None
        """The trainer's last report; None while it is not running."""
        self.progressed = 0.0
        """Time of the last report of progress, by the monotonic clock."""
        self._display = display
        self._checkpoint = checkpoint
        self._reported: tuple[str, Membership] | None = None
        self._unreadable = ""
        self._store_fails = ""
        """The last failure of its store that was shown since its last checkpoint."""
        self._of_data: Sequence[str | None] = ()
        self._of_trackers: Sequence[str] = ()
        self._health: HealthStatus | None = None
        self._stalled = False
        """True if the user was told that the trainer makes no progress."""

    @property
    def answers(self) -> bool:
        return self.process.running and self.process.ready

    async def read(self, control: ControlClient) -> None:
        """Polls the trainer's status; keeps the last one if it does not reply in time."""
        if not self.process.running:
            self.status, self._stalled = None, False
        if not self.answers:
            return
        try:
            report = await control.status(self.process.address)
        except Unreadable as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                self._display.event(str(error))
            return
        if report is not None:
            if shows_progress(report, self.status.progress_count if self.status else None):
                self.progressed = time.monotonic()
                if self._stalled:
                    self._display.event("the trainer makes progress again")
                    self._stalled = False
            self.status = report
        if self.status and self.status.last_checkpoint not in (None, self._checkpoint):
            self._checkpoint, self._store_fails = self.status.last_checkpoint, ""
            self._display.event(f"checkpoint of step {self.status.last_checkpoint.step}")
        self._tell_store()
        self._tell_data()
        self._tell_trackers()
        if self.status and (health := self.status.health) is not None:
            if new_breach(health, self._health):
                self._display.event(f"{health.reason}, {health.action}: {health.message}")
            self._health = health

    def _tell_store(self) -> None:
        """Reports why the trainer's store fails, once until it saves a checkpoint: training may wait for the store for
        minutes."""
        doing = self.status.activity if self.status else ""
        if doing.startswith(STORE_FAILS) and doing != self._store_fails:
            self._store_fails = doing
            self._display.event(doing)

    def _tell_data(self) -> None:
        """Reports data that has changed since the trainer's checkpoint, and rows that are too long, once a start that
        finds them."""
        messages = [self.status.data_changed, self.status.overlong] if self.status else []
        for message in messages:
            if message and message not in self._of_data:
                self._display.event(message)
        self._of_data = messages

    def _tell_trackers(self) -> None:
        """Reports trackers that fail, once until they do not any more. What comes to a message later, how much was
        lost, is a line at the end of the run."""
        messages = self.status.trackers_failed if self.status else ()
        for message in messages:
            if not any(message.startswith(reported) for reported in self._of_trackers):
                self._display.event(message)
        self._of_trackers = messages

    def tell_stall(self, stall: str) -> None:
        """Reports why the trainer makes no progress, once until it does again; `why` is empty if it does."""
        if stall and not self._stalled:
            self._display.event(stall)
            self._stalled = True

    async def tell_members(self, control: ControlClient, processes: Sequence[Supervised]) -> None:
        """Pushes the membership, unless it is unchanged; a restarted trainer has none."""
        members = tuple(
            Member(role=p.process.role, name=p.process.name, uid=p.uid, address=p.address)
            for p in processes
            if p.running and p.process.role is not Role.TRAINER and listens(p.process)
        )
        membership = (self.process.uid, Membership(members=members))
        if (
            self.answers
            and membership != self._reported
            and await control.members(self.process.address, membership[1])
        ):
            self._reported = membership

    async def ask_to_stop(self, control: ControlClient) -> bool:
        """Requests a checkpoint and exit; true if the trainer is up and accepted."""
        return self.answers and await control.stop(self.process.address)
