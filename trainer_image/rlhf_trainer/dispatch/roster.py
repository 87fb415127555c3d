"""Members that respond right now: the host pushes the membership, health checks filter it."""

import asyncio
import time
from collections.abc import Collection

import aiohttp

from rlhf_api.contract.run import Member
from rlhf_api.roles import HEALTH, Role

from ..process import progress
from ..transport.http import PROBE_SECONDS, HttpClient, HttpError
from .control import Control

POLL_SECONDS = 0.2


class Unavailable(RuntimeError):
    """No member of a role answered within its deadline."""


class Stopped(RuntimeError):
    """The host requested a stop during a wait."""


class Roster:
    """Members of each role whose health checks succeed."""

    def __init__(self, control: Control, http: HttpClient, only: Collection[str] | None = None) -> None:
        """`only`: names of the members that it knows; all unless given."""
        self._control, self._http, self._only = control, http, only

    def of_names(self, names: Collection[str]) -> "Roster":
        """The roster of these members alone."""
        return Roster(self._control, self._http, names)

    @property
    def stopping(self) -> bool:
        """True once the host requested a stop."""
        return self._control.stop_requested.is_set()

    def present(self, role: Role) -> dict[str, Member]:
        """All members of a role by uid, draining ones included, as last pushed by the host."""
        return {uid: m for uid, m in self._control.present(role).items() if self._knows(m)}

    @property
    def exhausted(self) -> frozenset[str]:
        """As `Control.exhausted`."""
        return self._control.exhausted

    def answering(self, role: Role) -> list[Member]:
        """As `find_answering`, on any other thread than the client's."""
        return self._http.run(self.find_answering(role))

    async def find_answering(self, role: Role) -> list[Member]:
        """Members whose health check answers within PROBE_SECONDS."""
        members = self._members(role)
        answers = await asyncio.gather(*(self._answers(m) for m in members))
        return [m for m, up in zip(members, answers, strict=True) if up]

    def unavailable(self, role: Role, seconds: float) -> Unavailable:
        """The error that no member has answered for so long."""
        known = ", ".join(f"{m.name} at {m.address}" for m in self._members(role))
        return Unavailable(
            f"no {role.value} answered within {seconds:.0f} s ({known or 'none was announced'}); see its log"
        )

    def wait(self, role: Role, required: int, timeout: float) -> list[Member]:
        """Waits until all `required` members answer that have a node; one suffices at the deadline.

        Raises:
            Unavailable: none answered within `timeout` seconds.
            Stopped: the host requested a stop meanwhile.
        """
        deadline = time.monotonic() + timeout
        while (
            len(members := self.answering(role)) < max(1, required - self._control.unplaced(role))
            and time.monotonic() < deadline
        ):
            progress.sign()
            if self.stopping:
                raise Stopped(f"stopped while waiting for the {role.value}")
            self._control.membership_changed.wait(POLL_SECONDS)
            self._control.membership_changed.clear()
        if not members:
            raise self.unavailable(role, timeout)
        return members

    def _members(self, role: Role) -> list[Member]:
        return [m for m in self._control.members(role) if self._knows(m)]

    def _knows(self, member: Member) -> bool:
        return self._only is None or member.name in self._only

    async def _answers(self, member: Member) -> bool:
        try:
            await self._http.json("GET", member.address + HEALTH, timeout=PROBE_SECONDS)
        except (HttpError, TimeoutError, aiohttp.ClientError, ValueError):
            return False
        return True
