"""Items of a round that are with its members: who gets the next one, whose progress is late, and who has failed."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.run import Member

log = logging.getLogger(__name__)


@dataclass
class Assigned:
    """An item, by its `place` among those of the round, that is with a member."""

    place: int
    member: Member
    heard: float
    """Time at which it was handed out, or last made progress."""
    begun: bool = False
    late: bool = False


class Assignments:
    """What the members of one round have, at most `concurrent` items each, and when each was last heard of.

    An item is late without progress for `silence` seconds; before its first progress it may be waiting in its member's
    line, and any progress of that member counts. A member that was silent altogether gets nothing while others are
    there.
    """

    def __init__(self, members: Sequence[Member], concurrent: int, silence: float) -> None:
        self.failed: dict[str, str] = {}
        """Members that get no more items, and why, by uid."""
        self._members, self._concurrent, self._silence = members, concurrent, silence
        self._load: Counter[str] = Counter()  # items that are with each member
        self._heard: dict[str, float] = {}  # when each member last made progress
        self._silent: set[str] = set()
        self._tries: Counter[tuple[int, str]] = Counter()  # failures of an item with a member

    def choose(self, place: int, present: Mapping[str, Member]) -> Member | None:
        """The member that has failed least at the item and has the least to do; None while none has room. `present`:
        the members by uid, as the host sees them now."""
        able = [m for m in self._members if m.uid not in self.failed and _takes_work(present.get(m.uid))]
        awake = [m for m in able if m.uid not in self._silent] or able
        free = [m for m in awake if self._load[m.uid] < self._concurrent]
        return min(free, key=lambda m: (self._tries[place, m.uid], self._load[m.uid]), default=None)

    def give(self, place: int, member: Member) -> Assigned:
        self._load[member.uid] += 1
        return Assigned(place, member, time.monotonic())

    def take_back(self, assigned: Assigned) -> None:
        """Its member does not have it any more."""
        self._load[assigned.member.uid] -= 1

    def progress(self, assigned: Assigned) -> None:
        assigned.heard, assigned.begun = time.monotonic(), True
        self.hear(assigned.member)

    def hear(self, member: Member) -> None:
        self._heard[member.uid] = time.monotonic()
        self._silent.discard(member.uid)

    def check_late(self, assigned: Assigned) -> bool:
        """Whether the item is late from now on."""
        deadline = time.monotonic() - self._silence
        theirs = self._heard.get(assigned.member.uid, assigned.heard)
        if assigned.heard >= deadline or (theirs >= deadline and not assigned.begun):
            return False
        assigned.late = True
        if theirs < deadline:
            self._silent.add(assigned.member.uid)
        return True

    def count_try(self, assigned: Assigned) -> int:
        """Failures of the item so far, this one included."""
        self._tries[assigned.place, assigned.member.uid] += 1
        return sum(count for (place, _), count in self._tries.items() if place == assigned.place)

    def fail(self, member: Member, why: str) -> None:
        """The member gets no more items in this round."""
        if member.uid not in self.failed:
            self.failed[member.uid] = why
            log.warning("%s failed (%s); what it had goes to the others", member.name, why)


def _takes_work(member: Member | None) -> bool:
    return member is not None and not member.draining
