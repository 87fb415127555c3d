"""HTTP client of the jobs' trainers: reports, membership, checkpoint and stop requests."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from rlhf_api.contract.report import TrainerStatus, with_last_words
from rlhf_api.contract.run import EXIT_SUSPENDED, Membership
from rlhf_api.roles import Role

from ...job.snapshot import Job, Pod
from ...supervision.role_client import ControlClient, Unreadable, WrongToken
from ..objects.companions import token

log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Maximum number of concurrent polls of trainers."""
_PATIENCE_SECONDS = 0.2
"""Longest wait of a reconcile for a report of a trainer that answered last time, seconds."""
_PAUSE_SECONDS, _LONGEST_PAUSE = 5.0, 60.0
"""Backoff after a failed poll, first and longest, in seconds; doubled each time."""
_OF_OTHER_KEY = (
    "its token is of another key than the operator's (name that key's Secret in the chart's tokenKey.previousSecret), "
    "or another process has the trainer's port"
)


@dataclass(slots=True)
class _Known:
    """State of one trainer pod: its last report, and requests under way."""

    uid: str
    status: TrainerStatus | None = None
    sent: str = ""
    """The membership that it was told last, as JSON, which takes a quarter of the model's memory."""
    asking: asyncio.Task[None] | None = None
    unanswered: int = 0
    """Consecutive failed polls."""
    silent_since: float | None = None
    """Time of the first failed poll in a row, in seconds since the epoch; None if the last one succeeded."""
    next: float = 0.0
    """Earliest time of the next poll, by the monotonic clock."""
    trainer_error: str = ""
    bare: bool = False
    """True if it wants the token itself, and nobody else can take its address."""
    key: int = 0
    """Index of the operator's key that its token is derived from."""


class TrainerClient:
    """Caches each job's trainer state while its pod lives; all of it can be fetched again.

    Reports are polled by a task pool of their own, and a trainer that did not answer last time gets no other request:
    silent trainers do not delay other jobs.
    """

    def __init__(
        self,
        *token_keys: bytes,
        clock: Callable[[], float] = time.time,
        check_fence: Callable[[], None] = lambda: None,
    ) -> None:
        """`token_keys`: the key of new jobs' tokens first, then a former one; `clock`: the time of day; `check_fence`:
        called before every order, raises ApiError unless this process may give one."""
        self._keys, self._clock, self._check_fence = token_keys, clock, check_fence
        self._orders = aiohttp.TCPConnector(limit=64, force_close=True)
        self._reports = aiohttp.TCPConnector(limit=_AT_ONCE, force_close=True)
        self._pool = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[str, _Known] = {}

    async def close(self) -> None:
        for uid in list(self._known):
            self.forget(uid)
        await self._orders.close()
        await self._reports.close()

    def forget(self, job_uid: str) -> None:
        known = self._known.pop(job_uid, None)
        if known is not None and known.asking is not None:
            known.asking.cancel()

    async def read(self, job: Job, pods: list[Pod], *, bare: bool = False) -> TrainerStatus | None:
        """The trainer's last report. `bare`: it wants the token itself (`Pinned.sends_bare_token`)."""
        first = _first(pods)
        if first is None:
            self.forget(job.uid)
            return None
        known = self._known.get(job.uid)
        if known is None or known.uid != first.uid:
            self.forget(job.uid)
            known = self._known[job.uid] = _Known(first.uid, bare=bare)
        if first.ended is not None and first.ended.code in (0, EXIT_SUSPENDED):
            known.status = with_last_words(known.status, first.ended.log)
        if not (first.up and first.serving):
            return known.status
        if (known.asking is None or known.asking.done()) and time.monotonic() >= known.next:
            known.asking = asyncio.create_task(self._ask(job, first, known))
        if known.asking is not None and not known.unanswered:
            await asyncio.wait({known.asking}, timeout=_PATIENCE_SECONDS)
        return known.status

    async def _ask(self, job: Job, first: Pod, known: _Known) -> None:
        try:
            async with self._pool, self._client(job, self._reports) as control:
                status, trainer_error = await control.status(first.url), ""
        except WrongToken as error:
            status, trainer_error = None, f"{error}: {_OF_OTHER_KEY}"
            known.key = (known.key + 1) % len(self._keys)
            if known.key:  # not all keys have been tried
                return
        except Unreadable as error:
            status, trainer_error = None, str(error)
            if trainer_error != known.trainer_error:
                log.warning("%s/%s: %s", job.namespace, job.name, trainer_error)
        known.trainer_error = trainer_error
        if status is not None:
            known.status, known.unanswered, known.silent_since = status, 0, None
        else:
            known.silent_since = known.silent_since or self._clock()
            known.next = time.monotonic() + min(_PAUSE_SECONDS * 2.0**known.unanswered, _LONGEST_PAUSE)
            known.unanswered = min(known.unanswered + 1, 16)

    def silent_since(self, job: Job) -> float | None:
        """Time since when the trainer has been silent, in seconds since the epoch; None if it answers or does not
        exist.
        """
        known = self._known.get(job.uid)
        return known.silent_since if known else None

    def trainer_error(self, job: Job) -> str:
        """The error in the trainer's last answer; empty without one, or without an answer."""
        known = self._known.get(job.uid)
        return known.trainer_error if known else ""

    def key(self, job: Job) -> bytes:
        """The key of which the job's token is derived: the one that its trainer knows, if it runs."""
        known = self._known.get(job.uid)
        return self._keys[known.key if known else 0]

    async def push_membership(self, job: Job, pods: list[Pod], members: Membership) -> bool:
        """Pushes the membership, unless this trainer has it already; False if the push failed."""
        first, known, text = self._listening(job, pods), self._known.get(job.uid), members.model_dump_json()
        if first is None or known is None or known.sent == text:
            return True
        async with self._control(job) as control:
            if not await control.members(first.url, members):
                return False
        known.sent = text
        return True

    async def stop(self, job: Job, pods: list[Pod]) -> None:
        """Requests a checkpoint and exit."""
        if (first := self._listening(job, pods)) is not None:
            async with self._control(job) as control:
                await control.stop(first.url)

    async def checkpoint(self, job: Job, pods: list[Pod]) -> bool:
        """Requests a checkpoint; returns whether the trainer accepted."""
        if (first := self._listening(job, pods)) is None:
            return False
        async with self._control(job) as control:
            return await control.checkpoint(first.url)

    def _listening(self, job: Job, pods: list[Pod]) -> Pod | None:
        """The first trainer, if it answered last time."""
        first, known = _first(pods), self._known.get(job.uid)
        if first is None or known is None or known.uid != first.uid:
            return None
        return first if first.up and first.serving and known.status and not known.unanswered else None

    def _control(self, job: Job) -> ControlClient:
        """Client for orders."""
        self._check_fence()
        return self._client(job, self._orders)

    def _client(self, job: Job, connector: aiohttp.TCPConnector) -> ControlClient:
        known = self._known.get(job.uid)
        return ControlClient(token(self.key(job), job), connector, bare=known is not None and known.bare)


def _first(pods: list[Pod]) -> Pod | None:
    """The rank 0 pod of the newest attempt."""
    trainers = [pod for pod in pods if pod.role is Role.TRAINER and pod.index == 0]
    return max(trainers, key=lambda pod: pod.attempt, default=None)
