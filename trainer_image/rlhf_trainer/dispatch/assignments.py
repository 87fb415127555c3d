"""Assignment of a round's items to members: choice of a member, detection of late items, failed members."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.contract.run import Member

log = logging.getLogger(__name__)


@dataclass
class Assigned:
    """An item, by its `place` in the round of `among`, that a member works on."""

    place: int
    member: Member
    among: "Assignments"
    last_sign: float
    """Time of its assignment or of its last progress."""
    begun: bool = False
    late: bool = False

    def progress(self) -> None:
        self.last_sign, self.begun = time.monotonic(), True
        self.among.record_reply(self.member)


@dataclass(frozen=True)
class Limits:
    """Items of a member at once, and the seconds that an item may go without progress."""

    concurrent: int
    silence: float


class Assignments:
    """Tracks which member works on which item, at most `concurrent` each, and when each last made progress.

    An item is late without progress for `silence` seconds; before its first progress it may be queued in its member, so
    any progress of that member counts. A member without any progress gets no items while there are others.
    """

    def __init__(
        self, members: Sequence[Member], limits: Limits, last_progress: dict[str, float] | None
    ) -> None:
        """`last_progress`: time of each member's last progress, by uid. Rounds that run at once and ask the same
        members share it: an item of one may be queued behind those of another."""
        self.failed: dict[str, str] = {}
        """Members that get no more items: uid -> reason."""
        self._members, self._concurrent, self._silence = members, limits.concurrent, limits.silence
        self._load: Counter[str] = Counter()  # number of items assigned to each member
        self._last_signs = {} if last_progress is None else last_progress
        self._silent: set[str] = set()
        self._tries: Counter[tuple[int, str]] = Counter()  # failures by (item, member)

    def choose(self, place: int, present: Mapping[str, Member]) -> Member | None:
        """The member with the fewest failures of the item and then the fewest items; None while all are full.
        `present`: the host's current members by uid."""
        able = [m for m in self._members if m.uid not in self.failed and _takes_work(present.get(m.uid))]
        awake = [m for m in able if m.uid not in self._silent] or able
        free = [m for m in awake if self._load[m.uid] < self._concurrent]
        return min(free, key=lambda m: (self._tries[place, m.uid], self._load[m.uid]), default=None)

    def give(self, place: int, member: Member) -> Assigned:
        self._load[member.uid] += 1
        return Assigned(place, member, self, time.monotonic())

    def take_over(self, assigned: Assigned, place: int) -> None:
        """Adds an assignment of an earlier round, of the item that has this place now."""
        self._load[assigned.member.uid] += 1
        assigned.place, assigned.among = place, self

    def take_back(self, assigned: Assigned) -> None:
        """Removes an assignment."""
        self._load[assigned.member.uid] -= 1

    def record_reply(self, member: Member) -> None:
        self._last_signs[member.uid] = time.monotonic()
        self._silent.discard(member.uid)

    def check_late(self, assigned: Assigned) -> bool:
        """Marks the item as late if neither it nor (before its first progress) its member has made progress for
        `silence` seconds; returns whether it did.
        """
        deadline = time.monotonic() - self._silence
        theirs = self._last_signs.get(assigned.member.uid, assigned.last_sign)
        if assigned.last_sign >= deadline or (theirs >= deadline and not assigned.begun):
            return False
        assigned.late = True
        if theirs < deadline:
            self._silent.add(assigned.member.uid)
        return True

    def count_try(self, assigned: Assigned) -> int:
        """Counts a failure of the item; returns how many it has had."""
        self._tries[assigned.place, assigned.member.uid] += 1
        return sum(count for (place, _), count in self._tries.items() if place == assigned.place)

    def fail(self, member: Member, reason: str) -> None:
        """Excludes the member from the rest of this round."""
        if member.uid not in self.failed:
            self.failed[member.uid] = reason
            log.warning("%s failed (%s); its items go to the other members", member.name, reason)


def _takes_work(member: Member | None) -> bool:
    return member is not None and not member.draining
