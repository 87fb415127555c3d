"""Dispatches a round of items to the members of a role: each item to the least loaded member, and to another one if
that fails.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from typing import Generic

import aiohttp

from rlhf_api.contract.run import Member
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.host.tasks import end_all

from ..process import progress
from ..process.timeline import RECORDER
from ..transport.http import HttpError
from .assignments import Assigned, Assignments, Limits
from .outcomes import Client, Failed, Interrupted, Item, Outcome, Refused, Result, UnderWay

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""Poll interval for lost or silent members, seconds: a lost node closes no connection."""
LISTENING_SECONDS = 1.0
"""Interval of the liveness checks of members, seconds: one that shuts down may never answer its requests."""
TRIES = 3
"""Failures of an item on members that live before it is given up."""

Current = Callable[[], Mapping[str, Member]]
"""The host's current members by uid."""


@dataclass
class Switches:
    """Flags that end a round early, set by any thread. `closing`: hand out no more items, end once those under way are
    done or interrupted; `over`: cancel them. With `keep` a closing round ends at once, and the next one takes those
    under way over."""

    keep: bool = False
    closing: bool = False
    over: bool = False
    apply: Callable[[], object] = lambda: None
    """Has the round read them now; set by the round."""


@dataclass(frozen=True)
class Observer(Generic[Item, Result]):
    """Callbacks of a round, on its thread."""

    left: Callable[[int], None] = lambda _count: None
    """The number of items without a result."""
    assigned: Callable[[Item], None] = lambda _item: None
    """An item that a member is about to get."""
    arrived: Callable[[Result], None] = lambda _result: None
    gave_up: Callable[[Item, str], None] = lambda _item, _reason: None
    """An item that is not tried again, and the reason; it may raise to end the round."""


class Dispatch(Generic[Item, Result]):
    """One round of items among `members`, at most `limits.concurrent` at once with each. It ends once no item is under
    way and none waits for a member.

    A draining member finishes its items and gets no more. A member that fails, refuses connections or has left
    `current` gets no more either, and its items go to the others: no item is lost. Items are handed out in their order,
    those of such a member before later ones.

    An item without progress for `limits.silence` seconds fails, but its member does not (see `Assignments`); another
    member with room gets it.
    """

    def __init__(
        self,
        items: Sequence[Item],
        members: Sequence[Member],
        client: Client[Item, Result],
        *,
        current: Current,
        limits: Limits,
        describe: Callable[[Item], str],
        observer: Observer[Item, Result],
        switches: Switches | None = None,
        last_progress: dict[str, float] | None = None,
        under_way: Sequence[UnderWay[Item, Result]] = (),
    ) -> None:
        """`describe` names an item in the log; `last_progress` as in `Assignments`; `under_way`: some of `items`, as
        an earlier round left them, of members that may have gone from `members`."""
        self._items, self._members, self._client = list(items), members, client
        self._current, self._silence, self._describe = current, limits.silence, describe
        self._observer, self._switches = observer, switches or Switches()
        self._waiting = list(range(len(items)))  # a heap of places
        self._results: dict[int, Result] = {}
        self._refused: dict[int, str] = {}
        self._requeued: list[Item] = []
        self._assignments = Assignments(members, limits, last_progress)
        self._assigned: dict[asyncio.Future[Result], Assigned] = {}
        self._ended: asyncio.Queue[asyncio.Future[Result] | None] = asyncio.Queue()
        self._looked_at = time.monotonic()
        self._under_way = under_way
        self._logged = set[tuple[int, str, str]]()

    @property
    def size(self) -> int:
        """Number of items so far, with and without a result."""
        return len(self._items)

    def add(self, item: Item) -> None:
        """Adds an item to the round while it runs, on its loop."""
        self._items.append(item)
        heappush(self._waiting, len(self._items) - 1)
        self._ended.put_nowait(None)

    async def run(self) -> Outcome[Item, Result]:
        """Runs the round to its end. If it is cancelled or raises, it cancels all items under way."""
        self._switches.apply = partial(
            asyncio.get_running_loop().call_soon_threadsafe, self._ended.put_nowait, None
        )
        self._observer.left(len(self._waiting))
        interrupted = self._take_over()
        watches = [asyncio.ensure_future(self._watch(member)) for member in self._members]
        try:
            for task in interrupted:  # before items are handed out: most of these come before those
                while task in self._assigned:
                    await self._settle()
            while self._hand_out():
                await self._settle()
                progress.sign()  # each item has a deadline of its own
            under_way = self._hand_over()
        finally:
            await end_all([*watches, *self._assigned])
        places = range(len(self._items))
        return Outcome(
            [(self._items[p], self._results[p]) for p in places if p in self._results],
            [self._items[p] for p in places if p not in self._results and p not in self._refused],
            self._assignments.failed,
            [(self._items[place], reason) for place, reason in self._refused.items()],
            self._requeued,
            under_way,
        )

    def _take_over(self) -> list[asyncio.Future[Result]]:
        """Waits for the items that an earlier round left under way; cancels those of members that left the round, and
        returns them."""
        places = {id(item): place for place, item in enumerate(self._items)}
        begun = {places[id(each.item)] for each in self._under_way}
        self._waiting = [place for place in self._waiting if place not in begun]
        uids = {member.uid for member in self._members}
        for item, assigned, task in self._under_way:
            self._assignments.take_over(assigned, places[id(item)])
            self._wait_for(task, assigned)
        theirs = {each.assigned.member.uid: each.assigned.member for each in self._under_way}
        left = [member for uid, member in theirs.items() if uid not in uids]
        return [task for member in left for task in self._give_up_on(member, "it has left the round")]

    def _hand_over(self) -> list[UnderWay[Item, Result]]:
        """Items under way, for the next round to take over; none unless the round keeps them."""
        if not self._switches.keep:
            return []
        left = [UnderWay(self._items[given.place], given, task) for task, given in self._assigned.items()]
        for task in self._assigned:
            task.remove_done_callback(self._ended.put_nowait)
        self._assigned.clear()
        return left

    def _hand_out(self) -> bool:
        """Assigns items to members with room; returns whether any item is assigned."""
        if self._switches.over:
            return False
        if self._switches.closing:
            return bool(self._assigned) and not self._switches.keep
        present = self._current()
        while self._waiting and (member := self._assignments.choose(self._waiting[0], present)) is not None:
            assigned = self._assignments.give(heappop(self._waiting), member)
            item = self._items[assigned.place]
            self._observer.assigned(item)
            task = asyncio.ensure_future(self._client.ask(member, item, assigned.progress))
            task.add_done_callback(RECORDER.begin_request(member))
            self._wait_for(task, assigned)
        return bool(self._assigned)

    def _wait_for(self, task: "asyncio.Future[Result]", assigned: Assigned) -> None:
        task.add_done_callback(self._ended.put_nowait)
        self._assigned[task] = assigned

    async def _settle(self) -> None:
        """Waits for a result, at most until the next check of the members."""
        if time.monotonic() > self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._give_up_on_who_is_gone()
            self._give_up_what_is_late()
        try:
            # Python 3.11's `wait_for` would lose a cancellation that comes together with a result.
            async with asyncio.timeout(LOOK_SECONDS):
                task = await self._ended.get()
        except TimeoutError:
            return
        if task is None:
            return
        assigned = self._assigned.pop(task)
        place, member = assigned.place, assigned.member
        self._assignments.take_back(assigned)
        try:
            self._results[place] = task.result()
            self._assignments.record_reply(member)
            self._observer.arrived(self._results[place])
        except InvalidJob:  # a ValueError that is not the member's fault
            raise
        except Refused as error:
            self._refuse(place, str(error))
        except Interrupted:
            if not self._switches.closing:  # its server shuts down
                self._requeue(place)
                self._assignments.fail(member, "it gave up its requests")
        except Failed as error:
            self._assignments.record_reply(member)
            self._try_again(assigned, str(error))
        except (aiohttp.ClientError, OSError, HttpError, ValueError, asyncio.CancelledError) as error:
            if isinstance(error, HttpError) and error.of_request:
                raise
            if assigned.late:
                self._try_again(assigned, f"no progress for {self._silence:g} s")
            else:
                self._requeue(place)
                self._assignments.fail(member, repr(error))
        self._observer.left(len(self._items) - len(self._results) - len(self._refused))

    def _try_again(self, assigned: Assigned, reason: str) -> None:
        tries, item = self._assignments.count_try(assigned), self._describe(self._items[assigned.place])
        failure = tries, assigned.member.uid, reason
        level = (
            logging.DEBUG if failure in self._logged else logging.WARNING
        )  # a hung member fails at all of its items
        self._logged.add(failure)
        log.log(level, "try %d of %d of %s, with %s: %s", tries, TRIES, item, assigned.member.name, reason)
        if tries < TRIES:
            self._requeue(assigned.place)
        else:
            self._refuse(assigned.place, f"{reason}, {TRIES} times")

    def _requeue(self, place: int) -> None:
        heappush(self._waiting, place)
        self._requeued.append(self._items[place])

    def _refuse(self, place: int, reason: str) -> None:
        self._refused[place] = reason
        log.warning("giving up on %s: %s", self._describe(self._items[place]), reason)
        self._observer.gave_up(self._items[place], reason)

    async def _watch(self, member: Member) -> None:
        """Returns once the member refuses connections."""
        await asyncio.sleep(LISTENING_SECONDS)
        while await self._client.listens(member):
            await asyncio.sleep(LISTENING_SECONDS)
        self._give_up_on(member, "it takes no connections any more")

    def _give_up_on_who_is_gone(self) -> None:
        present = self._current()
        for member in self._members:
            if member.uid not in present:
                self._give_up_on(member, "it is gone")

    def _give_up_what_is_late(self) -> None:
        for task, assigned in self._assigned.items():
            if self._assignments.check_late(assigned):
                task.cancel()

    def _give_up_on(self, member: Member, reason: str) -> list[asyncio.Future[Result]]:
        """Cancels its items, and returns them."""
        theirs = [task for task, assigned in self._assigned.items() if assigned.member.uid == member.uid]
        if theirs:
            self._assignments.fail(member, reason)
        for task in theirs:
            task.cancel()
        return theirs
