"""The operator's talk with the jobs' trainers: what they report, who serves them, the request to stop."""

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp

from rlhf_api.roles import Role
from rlhf_api.run import Membership
from rlhf_api.status import TrainerStatus

from ..control import ControlClient, Unreadable, WrongToken
from .objects import token
from .snapshot import Job, Pod

log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Trainers that are asked for their reports at the same time."""
_PATIENCE_SECONDS = 0.2
"""Longest wait of a reconcile for the report of a trainer that answered last time."""
_PAUSE_SECONDS, _LONGEST_PAUSE = 5.0, 60.0
"""Until a trainer that did not answer is asked again; twice as long each time."""


@dataclass
class _Known:
    """The last report of one trainer pod, and its requests under way."""

    uid: str
    status: TrainerStatus | None = None
    told: Membership | None = None
    asking: asyncio.Task[None] | None = None
    unanswered: int = 0
    """Times in a row."""
    silent_since: float | None = None
    """Seconds since the epoch, where it did not answer when it was asked last."""
    next: float = 0.0
    """Time from which it may be asked again, by the monotonic clock."""
    complaint: str = ""
    key: int = 0
    """Index of the operator's key that its token is made from."""


class TrainerClient:
    """Remembers each job's trainer only as long as that pod lives; all of it can be asked for again.

    Reports are asked for beside the looks at jobs, by a pool of their own, and nothing else is said to a trainer that
    did not answer last time: however many are silent, other jobs do not wait for them.
    """

    def __init__(self, *token_keys: bytes) -> None:
        """The key of new jobs' tokens first, then a former one."""
        self._keys = token_keys
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

    async def read(self, job: Job, pods: list[Pod]) -> TrainerStatus | None:
        """The trainer's last report."""
        first = _first(pods)
        if first is None:
            self.forget(job.uid)
            return None
        known = self._known.get(job.uid)
        if known is None or known.uid != first.uid:
            self.forget(job.uid)
            known = self._known[job.uid] = _Known(first.uid)
        if not (first.up and first.serving):
            return known.status
        if (known.asking is None or known.asking.done()) and time.monotonic() >= known.next:
            known.asking = asyncio.create_task(self._ask(job, first, known))
        if known.asking is not None and not known.unanswered:
            await asyncio.wait({known.asking}, timeout=_PATIENCE_SECONDS)
        return known.status

    async def _ask(self, job: Job, first: Pod, known: _Known) -> None:
        try:
            async with self._pool, ControlClient(self._token(job, known), self._reports) as control:
                status, complaint = await control.status(first.url), ""
        except WrongToken as error:
            status, complaint = None, str(error)
            known.key = (known.key + 1) % len(self._keys)
            if known.key:  # not all have been tried
                return
        except Unreadable as error:
            status, complaint = None, str(error)
            if complaint != known.complaint:
                log.warning("%s/%s: %s", job.namespace, job.name, complaint)
        known.complaint = complaint
        if status is not None:
            known.status, known.unanswered, known.silent_since = status, 0, None
        else:
            known.silent_since = known.silent_since or time.time()
            known.next = time.monotonic() + min(_PAUSE_SECONDS * 2.0**known.unanswered, _LONGEST_PAUSE)
            known.unanswered = min(known.unanswered + 1, 16)

    def silent_since(self, job: Job) -> float | None:
        """Start of the trainer's silence, in seconds since the epoch; None where it answers, or is none."""
        known = self._known.get(job.uid)
        return known.silent_since if known else None

    async def tell(self, job: Job, pods: list[Pod], members: Membership) -> bool:
        """Pushes the membership, unless this trainer knows it already; False where it should know and does not."""
        first, known = self._listening(job, pods), self._known.get(job.uid)
        if first is None or known is None or known.told == members:
            return True
        async with self._control(job) as control:
            if not await control.members(first.url, members):
                return False
        known.told = members
        return True

    async def stop(self, job: Job, pods: list[Pod]) -> None:
        """Asks for a checkpoint and the trainer's end."""
        if (first := self._listening(job, pods)) is not None:
            async with self._control(job) as control:
                await control.stop(first.url)

    async def checkpoint(self, job: Job, pods: list[Pod]) -> bool:
        """Asks for a checkpoint now; whether the trainer took the request."""
        if (first := self._listening(job, pods)) is None:
            return False
        async with self._control(job) as control:
            return await control.checkpoint(first.url)

    def _listening(self, job: Job, pods: list[Pod]) -> Pod | None:
        """The first trainer, where it answered the last time that it was asked."""
        first, known = _first(pods), self._known.get(job.uid)
        if first is None or known is None or known.uid != first.uid:
            return None
        return first if first.up and first.serving and known.status and not known.unanswered else None

    def _control(self, job: Job) -> ControlClient:
        return ControlClient(self._token(job, self._known.get(job.uid)), self._orders)

    def _token(self, job: Job, known: _Known | None) -> str:
        return token(self._keys[known.key if known else 0], job)


def _first(pods: list[Pod]) -> Pod | None:
    """The pod of the newest attempt's rank 0."""
    trainers = [pod for pod in pods if pod.role is Role.TRAINER and pod.index == 0]
    return max(trainers, key=lambda pod: pod.attempt, default=None)
