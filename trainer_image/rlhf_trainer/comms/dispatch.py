"""Work among the members of a role: each item goes to whoever has the least to do, and elsewhere where that fails."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import aiohttp

from rlhf_api.problems import InvalidJob
from rlhf_api.run import Member

from .http import HttpError

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Interval of looking for members that are gone, or silent: a node that is lost closes no connection."""
LISTENING_SECONDS = 1.0
"""Interval of asking members whether they still take connections: one that ends may never answer what it has."""
TRIES = 3
"""Failures of an item, with members that live, before it is given up."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_Item = TypeVar("_Item", contravariant=True)
_Result = TypeVar("_Result", covariant=True)
Current = Callable[[], Mapping[str, Member]]
"""The members by uid, as the host sees them now."""


class Refused(Exception):
    """The item itself cannot be done, by nobody: it is not tried again."""


class Failed(Exception):
    """The item was not done, though its member lives: it is tried again, TRIES times in all."""


class Interrupted(Exception):
    """The member stopped working on the item while its round was closing: another round goes on with it."""


@dataclass
class Switches:
    """Of a round under way, set by any thread: `closing`, no more items are handed out, and it ends once those under
    way are done or interrupted; `over`, it gives them up."""

    closing: bool = False
    over: bool = False


class Ask(Protocol[_Item, _Result]):
    """Has a member do an item, and calls `progress` whenever it shows that it works on it. Cancelled, it gives up.

    Raises Refused, Failed, Interrupted, InvalidJob or HttpError 4xx, which end the round, or, where the member failed,
    one of aiohttp.ClientError, OSError, ValueError and HttpError.
    """

    def __call__(
        self, member: Member, item: _Item, progress: Callable[[], None], /
    ) -> Awaitable[_Result]: ...


@dataclass(frozen=True)
class Outcome(Generic[Item, Result]):
    """The results, in the order of their items; items that nobody did; which members failed and why, by uid; items
    that are given up and why; and items that were handed out again, each as often as that happened."""

    results: list[tuple[Item, Result]]
    unanswered: list[Item]
    failed: dict[str, str]
    refused: list[tuple[Item, str]]
    requeued: list[Item]


@dataclass
class _Asked:
    """An item that is with a member."""

    place: int
    member: Member
    heard: float
    """Time at which it was handed out, or last made progress."""
    begun: bool = False
    late: bool = False


class Dispatch(Generic[Item, Result]):
    """One round of items among `members`, at most `concurrent` at once with each.

    Who drains finishes what it has and gets no more. Who fails, takes no connections or is not in `current` any more
    gets no more either, and what it had goes to the others, first in line: no item is lost.

    An item without progress for `silence` seconds fails, and not its member; before its first progress it may be
    waiting in its member's line, and any progress of that member counts. It goes to another member where one has room,
    and a member that was silent altogether gets nothing while others are there.
    """

    def __init__(
        self,
        items: Sequence[Item],
        members: Sequence[Member],
        *,
        ask: Ask[Item, Result],
        listens: Callable[[Member], Awaitable[bool]],
        current: Current,
        concurrent: int,
        silence: float,
        describe: Callable[[Item], str],
        left: Callable[[int], None] = lambda _count: None,
        arrived: Callable[[Result], None] = lambda _result: None,
        gave_up: Callable[[Item, str], None] = lambda _item, _why: None,
        switches: Switches | None = None,
    ) -> None:
        """`describe` names an item in the log; `left` is told how many items have no result yet, `arrived` each result
        as it comes, and `gave_up` of an item that is not tried again and why, which may raise to end the round."""
        self._items, self._members = items, members
        self._ask, self._listens, self._current = ask, listens, current
        self._concurrent, self._silence = concurrent, silence
        self._describe, self._left, self._arrived, self._gave_up = describe, left, arrived, gave_up
        self._switches = switches or Switches()
        self._waiting = deque(range(len(items)))
        self._results: dict[int, Result] = {}
        self._failed: dict[str, str] = {}
        self._refused: dict[int, str] = {}
        self._requeued: list[Item] = []
        self._asked: dict[asyncio.Future[Result], _Asked] = {}
        self._load: Counter[str] = Counter()  # items that are with each member
        self._heard: dict[str, float] = {}  # when each member last made progress
        self._silent: set[str] = set()
        self._tries: Counter[tuple[int, str]] = Counter()  # failures of an item with a member
        self._ended: asyncio.Queue[asyncio.Future[Result]] = asyncio.Queue()
        self._looked_at = time.monotonic()

    async def run(self) -> Outcome[Item, Result]:
        """Cancelled, or raising, it gives up all that is under way."""
        self._left(len(self._waiting))
        watches = [asyncio.ensure_future(self._watch(member)) for member in self._members]
        try:
            while self._hand_out():
                await self._settle()
        finally:
            unfinished: list[asyncio.Future[Any]] = [*watches, *self._asked]
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        places = range(len(self._items))
        return Outcome(
            [(self._items[p], self._results[p]) for p in places if p in self._results],
            [self._items[p] for p in places if p not in self._results and p not in self._refused],
            self._failed,
            [(self._items[place], why) for place, why in self._refused.items()],
            self._requeued,
        )

    def _hand_out(self) -> bool:
        """Gives items to whoever takes some; whether any item is with someone."""
        if self._switches.over:
            return False
        if self._switches.closing:
            return bool(self._asked)
        present = self._current()
        able = [m for m in self._members if m.uid not in self._failed and _takes_work(present.get(m.uid))]
        awake = [m for m in able if m.uid not in self._silent] or able
        while self._waiting and (free := [m for m in awake if self._load[m.uid] < self._concurrent]):
            place = self._waiting.popleft()
            tries = self._tries
            member = min(free, key=lambda m: (tries[place, m.uid], self._load[m.uid]))
            self._give(place, member)
        return bool(self._asked)

    def _give(self, place: int, member: Member) -> None:
        asked = _Asked(place, member, time.monotonic())

        def progress() -> None:
            asked.heard, asked.begun = time.monotonic(), True
            self._hear(member)

        task = asyncio.ensure_future(self._ask(member, self._items[place], progress))
        task.add_done_callback(self._ended.put_nowait)
        self._asked[task] = asked
        self._load[member.uid] += 1

    async def _settle(self) -> None:
        """Waits for a result, but not longer than until the next look at the members."""
        if time.monotonic() > self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._give_up_on_who_is_gone()
            self._give_up_what_is_late()
        try:
            task = await asyncio.wait_for(self._ended.get(), LOOK_SECONDS)
        except TimeoutError:
            return
        asked = self._asked.pop(task)
        place, member = asked.place, asked.member
        self._load[member.uid] -= 1
        try:
            self._results[place] = task.result()
            self._hear(member)
            self._arrived(self._results[place])
        except InvalidJob:  # a ValueError that no member is to blame for
            raise
        except Refused as error:
            self._refuse(place, str(error))
        except Interrupted:
            if not self._switches.closing:  # its server ends
                self._requeue(place)
                self._fail(member, "it gave up its requests")
        except Failed as error:
            self._hear(member)
            self._try_again(place, member, str(error))
        except (aiohttp.ClientError, OSError, HttpError, ValueError, asyncio.CancelledError) as error:
            if isinstance(error, HttpError) and 400 <= error.status < 500:
                raise
            if asked.late:
                self._try_again(place, member, f"no progress for {self._silence:g} s")
            else:
                self._requeue(place)
                self._fail(member, repr(error))
        self._left(len(self._items) - len(self._results) - len(self._refused))

    def _hear(self, member: Member) -> None:
        self._heard[member.uid] = time.monotonic()
        self._silent.discard(member.uid)

    def _try_again(self, place: int, member: Member, why: str) -> None:
        self._tries[place, member.uid] += 1
        tries = sum(count for (tried, _), count in self._tries.items() if tried == place)
        item = self._describe(self._items[place])
        log.warning("try %d of %d of %s, with %s: %s", tries, TRIES, item, member.name, why)
        if tries < TRIES:
            self._requeue(place)
        else:
            self._refuse(place, f"{why}, {TRIES} times")

    def _requeue(self, place: int) -> None:
        self._waiting.appendleft(place)  # first in line
        self._requeued.append(self._items[place])

    def _refuse(self, place: int, why: str) -> None:
        self._refused[place] = why
        log.warning("%s is given up: %s", self._describe(self._items[place]), why)
        self._gave_up(self._items[place], why)

    async def _watch(self, member: Member) -> None:
        """Until it takes no connections."""
        await asyncio.sleep(LISTENING_SECONDS)
        while await self._listens(member):
            await asyncio.sleep(LISTENING_SECONDS)
        self._give_up_on(member, "it takes no connections any more")

    def _give_up_on_who_is_gone(self) -> None:
        present = self._current()
        for member in self._members:
            if member.uid not in present:
                self._give_up_on(member, "it is gone")

    def _give_up_what_is_late(self) -> None:
        deadline = time.monotonic() - self._silence
        for task, asked in self._asked.items():
            theirs = self._heard.get(asked.member.uid, asked.heard)
            if asked.heard < deadline and (asked.begun or theirs < deadline):
                asked.late = True
                task.cancel()
                if theirs < deadline:
                    self._silent.add(asked.member.uid)

    def _give_up_on(self, member: Member, why: str) -> None:
        theirs = [task for task, asked in self._asked.items() if asked.member.uid == member.uid]
        if theirs:
            self._fail(member, why)
        for task in theirs:
            task.cancel()

    def _fail(self, member: Member, why: str) -> None:
        if member.uid not in self._failed:
            self._failed[member.uid] = why
            log.warning("%s failed (%s); what it had goes to the others", member.name, why)


def _takes_work(member: Member | None) -> bool:
    return member is not None and not member.draining
