"""The operator's talk with the jobs' trainers: what they report, who serves them, the request to stop."""

import logging
from dataclasses import dataclass

import aiohttp

from rlhf_api.roles import Role
from rlhf_api.run import Membership
from rlhf_api.status import TrainerStatus

from ..control import Control, Unreadable
from .objects import token
from .observed import Job, Pod
from .pod import PORT

log = logging.getLogger(__name__)


@dataclass
class _Known:
    """What is known of one trainer pod."""

    uid: str
    status: TrainerStatus | None = None
    told: Membership | None = None


class Trainers:
    """Remembers each job's trainer only as long as that pod lives; all of it can be asked for again."""

    def __init__(self, token_key: bytes) -> None:
        self._key = token_key
        self._connector = aiohttp.TCPConnector(limit=64, force_close=True)
        self._known: dict[str, _Known] = {}

    async def close(self) -> None:
        await self._connector.close()

    def forget(self, job_uid: str) -> None:
        self._known.pop(job_uid, None)

    async def read(self, job: Job, pods: list[Pod]) -> TrainerStatus | None:
        """The trainer's report; the last one stands where it does not answer now."""
        first = _first(pods)
        if first is None:
            self.forget(job.uid)
            return None
        known = self._known.get(job.uid)
        if known is None or known.uid != first.uid:
            known = self._known[job.uid] = _Known(first.uid)
        if first.up and first.serving:
            async with self._control(job) as control:
                try:
                    known.status = await control.status(_address(first)) or known.status
                except Unreadable as error:
                    log.warning("%s", error)
        return known.status

    async def tell(self, job: Job, pods: list[Pod], members: Membership) -> bool:
        """Pushes the membership, unless this trainer knows it already; False where it should know and does not."""
        first, known = _first(pods), self._known.get(job.uid)
        if first is None or known is None or not (first.up and first.serving) or known.told == members:
            return True
        async with self._control(job) as control:
            if not await control.members(_address(first), members):
                return False
        known.told = members
        return True

    async def stop(self, job: Job, pods: list[Pod]) -> None:
        """Asks for a checkpoint and the trainer's end."""
        first = _first(pods)
        if first is not None and first.serving:
            async with self._control(job) as control:
                await control.stop(_address(first))

    async def checkpoint(self, job: Job, pods: list[Pod]) -> bool:
        """Asks for a checkpoint now; whether the trainer took the request."""
        first = _first(pods)
        if first is None or not first.serving:
            return False
        async with self._control(job) as control:
            return await control.checkpoint(_address(first))

    def _control(self, job: Job) -> Control:
        return Control(token(self._key, job), self._connector)


def _first(pods: list[Pod]) -> Pod | None:
    """The pod of the newest attempt's rank 0."""
    trainers = [pod for pod in pods if pod.role is Role.TRAINER and pod.index == 0]
    return max(trainers, key=lambda pod: pod.attempt, default=None)


def _address(pod: Pod) -> str:
    host = f"[{pod.address}]" if ":" in (pod.address or "") else pod.address
    return f"http://{host}:{PORT}"
