"""Prompts to generators: each goes to whoever has the least to do, and to another one where that fails."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from rlhf_api.run import Member

from ..comms.http import HttpError
from ..records import Prompt, Rollout

log = logging.getLogger(__name__)

MEMBERSHIP_SECONDS = 0.5
"""How soon it is noticed that a generator is gone: a node that is lost closes no connection."""
LISTENING_SECONDS = 1.0
"""How often generators are asked whether they still take connections: one that ends may never answer what it has."""

REFUSALS = (400, 413, 422)
"""HTTP codes by which a generator says that it is the prompt that it cannot answer."""

Ask = Callable[[Member, Prompt], Awaitable[list[Rollout]]]
Listens = Callable[[Member], Awaitable[bool]]
Current = Callable[[], Mapping[str, Member]]
"""The generators by uid, as the host sees them now."""


@dataclass(frozen=True)
class Outcome:
    """The answers, in the order of their prompts; the prompts that nobody answered; who failed and why, by uid; the
    prompts that are refused and why, by id; and those whose generator failed, each as often as that happened."""

    answers: list[Rollout]
    unanswered: list[Prompt]
    failed: dict[str, str]
    refused: dict[str, str]
    requeued: list[Prompt]


class Dispatch:
    """One round of prompts among `members`, at most `concurrent` at once with each.

    Who drains finishes what it has and gets no more. Who fails, takes no connections or is not in `current` any more
    gets no more either, and what it had goes to the others: no prompt is lost, and none is scored as if it had no
    answer. A prompt that is refused is asked of nobody else, who would refuse it too.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        members: Sequence[Member],
        *,
        ask: Ask,
        listens: Listens,
        current: Current,
        concurrent: int,
        left: Callable[[int], None] = lambda _count: None,
        arrived: Callable[[list[Rollout]], None] = lambda _answers: None,
    ) -> None:
        """`left` is told how many prompts have no answer yet, `arrived` each prompt's answers as they come."""
        self._prompts, self._members = prompts, members
        self._ask, self._listens, self._current, self._concurrent = ask, listens, current, concurrent
        self._left, self._arrived = left, arrived
        self._waiting = deque(range(len(prompts)))
        self._answers: dict[int, list[Rollout]] = {}
        self._failed: dict[str, str] = {}
        self._refused: dict[int, str] = {}
        self._requeued: list[Prompt] = []
        self._asked: dict[asyncio.Future[list[Rollout]], tuple[int, Member]] = {}
        self._load: Counter[str] = Counter()  # prompts that are with each member
        self._ended: asyncio.Queue[asyncio.Future[list[Rollout]]] = asyncio.Queue()
        self._looked_at = time.monotonic()

    async def run(self) -> Outcome:
        """Raises HttpError where a generator refuses to be asked (4xx): so would every other."""
        self._left(len(self._waiting))
        watches = [asyncio.ensure_future(self._watch(member)) for member in self._members]
        try:
            while self._hand_out():
                await self._settle()
        finally:
            for task in (*watches, *self._asked):
                task.cancel()
        places = range(len(self._prompts))
        return Outcome(
            [rollout for place in places for rollout in self._answers.get(place, ())],
            [self._prompts[p] for p in places if p not in self._answers and p not in self._refused],
            self._failed,
            {self._prompts[place].id: why for place, why in self._refused.items()},
            self._requeued,
        )

    def _hand_out(self) -> bool:
        """Gives prompts to whoever takes some; whether any prompt is with someone."""
        present = self._current()
        able = [m for m in self._members if m.uid not in self._failed and _takes_work(present.get(m.uid))]
        while self._waiting and able:
            member = min(able, key=lambda m: self._load[m.uid])
            if self._load[member.uid] >= self._concurrent:
                break
            place = self._waiting.popleft()
            task = asyncio.ensure_future(self._ask(member, self._prompts[place]))
            task.add_done_callback(self._ended.put_nowait)
            self._asked[task] = place, member
            self._load[member.uid] += 1
        return bool(self._asked)

    async def _settle(self) -> None:
        """Waits for an answer, but not longer than until the next look at the membership."""
        if time.monotonic() > self._looked_at + MEMBERSHIP_SECONDS:
            self._give_up_on_who_is_gone()
        try:
            task = await asyncio.wait_for(self._ended.get(), MEMBERSHIP_SECONDS)
        except TimeoutError:
            return
        place, member = self._asked.pop(task)
        self._load[member.uid] -= 1
        try:
            self._answers[place] = task.result()
            self._arrived(self._answers[place])
        except (aiohttp.ClientError, OSError, HttpError, ValueError, asyncio.CancelledError) as error:
            if isinstance(error, HttpError) and error.status in REFUSALS:
                self._refuse(place, member, error)
            elif isinstance(error, HttpError) and 400 <= error.status < 500:
                raise
            else:
                self._waiting.appendleft(place)  # first in line
                self._requeued.append(self._prompts[place])
                self._fail(member, repr(error))
        self._left(len(self._prompts) - len(self._answers) - len(self._refused))

    def _refuse(self, place: int, member: Member, error: HttpError) -> None:
        self._refused[place] = f"HTTP {error.status}: {error.body}"
        log.warning("%s refuses prompt %s: %s", member.name, self._prompts[place].id, self._refused[place])

    async def _watch(self, member: Member) -> None:
        """Until it takes no connections."""
        await asyncio.sleep(LISTENING_SECONDS)
        while await self._listens(member):
            await asyncio.sleep(LISTENING_SECONDS)
        self._give_up_on(member, "it takes no connections any more")

    def _give_up_on_who_is_gone(self) -> None:
        self._looked_at = time.monotonic()
        present = self._current()
        for member in self._members:
            if member.uid not in present:
                self._give_up_on(member, "it is gone")

    def _give_up_on(self, member: Member, why: str) -> None:
        theirs = [task for task, (_, asked) in self._asked.items() if asked.uid == member.uid]
        if theirs:
            self._fail(member, why)
        for task in theirs:
            task.cancel()

    def _fail(self, member: Member, why: str) -> None:
        if member.uid not in self._failed:
            self._failed[member.uid] = why
            log.warning("%s failed (%s); its prompts go to the others", member.name, why)


def _takes_work(member: Member | None) -> bool:
    return member is not None and not member.draining
