"""The workers in all processes of the role of environments."""

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from typing import Any

import aiohttp

from rlhf_api.contract.run import role_token
from rlhf_api.host.tasks import end_all
from rlhf_api.roles import Role
from rlhf_api.sections.environment import Environment

from ...dispatch.roster import Roster, Stopped
from ...process import progress
from ...transport.keys import Keys
from .role_worker import CONNECT_SECONDS, RoleWorker
from .sandbox_pods import Sandboxes
from .starting import Starting

log = logging.getLogger(__name__)

AVOID_SECONDS, BUSY_SECONDS = 10.0, 1.0
"""Time for which a process that took no connection is left alone, and one where a worker is still about to end."""
LONGEST_AVOIDED = 80.0
"""The first of these doubles up to this: whoever asks for a worker waits for each attempt, of CONNECT_SECONDS."""
POLL_SECONDS = 0.2
_UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)


def sandboxes_of(roster: Roster) -> Sandboxes:
    members = roster.present(Role.SANDBOX).items()
    exhausted = roster.exhausted  # after the members: none that has left lacks its cause
    addresses = {uid: member.address for uid, member in members if not member.draining}
    return Sandboxes(addresses, exhausted)


class RoleWorkers:
    """`workers` of each process of the role, and one with calls one by one; on one event loop. While none of these
    processes answers, who asks for a worker waits, for the role's `startupTimeoutSeconds`."""

    def __init__(self, section: Environment, token: str, roster: Roster) -> None:
        """`token`: the job's."""
        self._section, self._roster = section, roster
        self._keys = Keys(role_token(token, Role.ENVIRONMENT), aiohttp.ClientTimeout(total=CONNECT_SECONDS))
        self._session: aiohttp.ClientSession | None = None
        self._workers = {
            one_by_one: Starting(partial(self._start_somewhere, one_by_one=one_by_one), is_single=one_by_one)
            for one_by_one in (False, True)
        }
        """By whether calls come one by one."""
        self._starts = Counter[tuple[str, bool]]()
        """Workers that are being started, by their process's uid and that."""
        self._avoided = dict[str, float]()
        """Times until which processes, by their uid, are left alone."""
        self._refused = Counter[str]()
        """Times in a row that processes, by their uid, took no connection."""
        self._keeping: asyncio.Future[None] | None = None
        self.schemas: list[dict[str, Any]] = []

    async def start(self) -> None:
        """Waits for a worker, which has imported the class. Raises as `free`."""
        self._session = aiohttp.ClientSession(
            middlewares=(self._keys,), auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None)
        )
        self._keeping = asyncio.ensure_future(self._keep(self._session))
        self._telling = asyncio.ensure_future(self._tell_sandboxes())
        self.schemas = (await self.free()).schemas

    async def free(self, *, one_by_one: bool = False) -> RoleWorker:
        """As `Workers.free`. Raises Unavailable where no process answers in time, Stopped where the run is to stop
        meanwhile."""
        deadline = time.monotonic() + self._section.startup_timeout_seconds
        while (worker := await self._workers[one_by_one].free()) is None:
            progress.sign()  # the wait has a deadline
            if self._roster.stopping:
                raise Stopped(f"stopped while waiting for the {Role.ENVIRONMENT.value}")
            if time.monotonic() > deadline:
                raise self._roster.unavailable(Role.ENVIRONMENT, self._section.startup_timeout_seconds)
            await asyncio.sleep(POLL_SECONDS)
        return worker

    async def close(self) -> None:
        """Ends all workers."""
        if self._keeping is not None:
            await end_all([self._keeping])

    async def _start_somewhere(self, *, one_by_one: bool) -> RoleWorker | None:
        """A worker of the process that has the fewest, among those that may have another one; None if none takes it."""
        assert self._session is not None, "start comes first"
        there = Counter(worker.member.uid for worker in self._workers[one_by_one].workers)
        there.update({uid: count for (uid, kind), count in self._starts.items() if kind == one_by_one})
        most, now = (1 if one_by_one else self._section.workers), time.monotonic()
        present = [each for each in self._roster.present(Role.ENVIRONMENT).values() if not each.draining]
        self._avoided = {uid: until for uid, until in self._avoided.items() if now < until}
        for member in sorted(present, key=lambda each: there[each.uid]):
            if there[member.uid] >= most or member.uid in self._avoided:
                continue
            place = member.uid, one_by_one
            self._starts[place] += 1
            try:
                made = await RoleWorker.start(self._session, self._section, member, one_by_one=one_by_one)
                del self._refused[member.uid]
                return made
            except _UNREACHABLE as error:
                if isinstance(error, aiohttp.WSServerHandshakeError):
                    seconds = BUSY_SECONDS
                else:
                    seconds = min(AVOID_SECONDS * 2 ** self._refused[member.uid], LONGEST_AVOIDED)
                    self._refused[member.uid] += 1
                self._avoided[member.uid] = time.monotonic() + seconds
                log.warning("%s takes no further worker: %s", member.name, error or type(error).__name__)
            finally:
                self._starts[place] -= 1
        return None

    async def _tell_sandboxes(self) -> None:
        """Tells the role's processes which sandboxes there are: they reach nobody who could."""
        while True:
            sandboxes = sandboxes_of(self._roster)
            for worker in [each for kind in self._workers.values() for each in kind.workers if each.lives]:
                await worker.tell_sandboxes(sandboxes)
            await asyncio.sleep(POLL_SECONDS)

    async def _keep(self, session: aiohttp.ClientSession) -> None:
        """Ends the workers when the event loop's tasks are cancelled at its end, as this one then is."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._telling.cancel()
            await asyncio.gather(*(each.end("the run has ended") for each in self._workers.values()))
            await session.close()
