"""Client of the reward and reference roles: sends messages to their members as they come, with retries."""

import asyncio
import concurrent.futures
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from rlhf_api.contract.run import Member
from rlhf_api.host.tasks import end_all
from rlhf_api.roles import Role

from ..dispatch.assignments import Limits
from ..dispatch.dispatch import Dispatch, Observer, Switches
from ..dispatch.outcomes import UnderWay
from ..dispatch.roster import Roster, Stopped, Unavailable
from ..process import faults, progress
from ..tensors.batches import plan
from ..tensors.records import Sequences
from ..transport.http import HttpClient
from .joined import MOST_TO_QUICK, JoiningClient
from .messages import places
from .questions import DTYPES, PAUSE_SECONDS, Question, QuestionClient, Reply

log = logging.getLogger(__name__)

AHEAD = 2
"""Micro-batches per member at once: one in progress and one queued."""
POLL_SECONDS = 0.2
JOIN_SECONDS = 1.0
"""Interval at which new members are looked for while the others work, seconds."""
MOST_ITEMS = 10_000
"""Messages of one round, which keeps them all until its end: the next one continues with those under way."""
ACTIVITY_LENGTH = 256
"""Maximum length of the activity text in the status."""
LAST_SECONDS = 5.0
"""Seconds that running scoring may still take once the run is to stop: otherwise the responses would have to be
generated again.
"""
Chunk = list[int]
"""Row indices of a batch, ascending."""


class ScoringFailed(RuntimeError):
    """Members that live failed at a message, or took longer than the timeout, several times."""


class Scorer:
    """Sends messages to the members of a role, the least loaded one first; while none replies, waits for a replacement.
    A member that joins gets messages too."""

    def __init__(
        self,
        role: Role,
        route: str,
        *,
        http: HttpClient,
        roster: Roster,
        chunk_tokens: int,
        timeout: float,
        patience: float,
        at_once: int = AHEAD,
        most_joined: int = 1,
        report: Callable[[str], None] = lambda _activity: None,
        left: Callable[[int], None] = lambda _count: None,
    ) -> None:
        """`chunk_tokens`: padded tokens per chunk; `timeout`: a member's deadline for a message, seconds; `patience`:
        seconds to wait for a member that responds; `at_once`: questions of a member at once; `most_joined`: how many of
        them, of one response each, are sent as one message, to a member that replies quickly up to MOST_TO_QUICK;
        `report` sets the activity while no member responds; `left` is told of each change in the number of responses
        without a reply."""
        self._role, self._http, self._roster = role, http, roster
        self._chunk_tokens, self._timeout, self._patience = chunk_tokens, timeout, patience
        self._at_once, self._report, self._left = at_once, report, left
        self._told_left = 0
        client = QuestionClient(http, route)
        to_quick = min(MOST_TO_QUICK, at_once // AHEAD)
        self._client = client if most_joined == 1 else JoiningClient(client, most_joined, to_quick)
        # All of this is the event loop's.
        self._open = dict[int, Question]()
        self._round: Dispatch[Question, None] | None = None
        self._serving: asyncio.Future[None] | None = None
        self._under_way: Sequence[UnderWay[Question, None]] = ()
        self._reasons = ""
        """The reason for which members that answer have failed since the last reply; while none answers, empty."""
        self._absent_since: float | None = None
        self._warned = False
        """True while the activity says that no member answers."""
        self._progressed = 0.0

    def send(self, question: Question) -> Question:
        """Sends a message, from any thread, and does not wait."""
        self._http.loop.call_soon_threadsafe(self._add, question)
        return question

    def wait(self, questions: Collection[Question]) -> None:
        """Waits for the replies.

        Raises, and then gives up all other messages too:
            InvalidJob: the role says that the job itself is at fault.
            Unavailable: no member replied in time.
            ScoringFailed: members that live failed at a message, or took longer than the timeout, several times.
            Stopped: the run is to stop, and the members fail or need longer than LAST_SECONDS.
        """
        faults.point(f"scoring:{self._role.value}")
        sizes = {question.reply: len(question.sequences) for question in questions}
        left: set[Future[Reply]] = set(sizes)
        began, until = time.monotonic(), float("inf")
        try:
            while True:
                done, left = concurrent.futures.wait(left, POLL_SECONDS, concurrent.futures.FIRST_EXCEPTION)
                for reply in done:
                    reply.result()
                self._tell_left(sum(sizes[reply] for reply in left))
                if not left:
                    return
                if self._roster.stopping:
                    until = min(until, time.monotonic() + LAST_SECONDS)
                self._check(began, until)
        except BaseException:
            self._http.run(self._give_up())
            raise

    def ask(
        self,
        sequences: Sequences,
        array: str,
        rows: Sequence[Any] | None = None,
        replied: Callable[[Chunk, Mapping[str, Any]], None] = lambda _chunk, _header: None,
        width: int = 0,
        **header: Any,
    ) -> Tensor:
        """The named array of the replies, of `width` numbers a place unless that is 0, over all sequences in their
        order. In the end `replied` is called with each chunk and its reply's header, in their order. Raises as `wait`
        does.

        A chunk is one micro-batch of the member's model, so that values depend neither on the number of members nor on
        retries.
        """
        chunks = [sorted(chunk) for chunk in plan(sequences.lengths.tolist(), 1, self._chunk_tokens)[0]]
        questions = [
            Question(
                sequences.select(torch.tensor(chunk)),
                array,
                None if rows is None else [rows[i] for i in chunk],
                header,
                width,
            )
            for chunk in chunks
        ]
        self.wait([self.send(question) for question in questions])
        count = len(places(array, sequences, torch.arange(len(sequences))))
        whole = torch.zeros((count, width) if width else (count,), dtype=DTYPES[array])
        for chunk, question in zip(chunks, questions, strict=True):
            values, reply = question.reply.result()
            whole[places(array, sequences, torch.tensor(chunk))] = values
            replied(chunk, reply)
        return whole

    def _tell_left(self, count: int) -> None:
        if count != self._told_left:
            self._told_left = count
            self._left(count)

    def _check(self, began: float, until: float) -> None:
        """Raises if waiting, since `began`, is of no use any more."""
        now, absent, stopping = time.monotonic(), self._absent_since, self._roster.stopping
        if absent is not None:
            progress.sign()  # the wait has a deadline
            if stopping:
                raise Stopped(f"stopped while waiting for the {self._role.value}")
            if now > max(began, absent) + self._patience:
                raise self._roster.unavailable(self._role, self._patience)
            if now > max(began, absent) + self._timeout and not self._warned:
                self._warned = True
                missing = self._roster.unavailable(self._role, self._timeout)
                log.warning("%s; waiting for it or its replacement", missing)
                self._report(f"waiting: {missing}"[:ACTIVITY_LENGTH])
        elif self._reasons:
            if stopping:
                raise Stopped(f"stopped while the {self._role.value} failed")
            if now > max(began, self._progressed) + self._timeout + self._patience:
                raise Unavailable(f"every {self._role.value} fails: {self._reasons}; see its log")
        if now > until:
            raise Stopped(f"stopped while the {self._role.value} was scoring")

    def _add(self, question: Question) -> None:
        self._open[id(question)] = question
        question.reply.add_done_callback(
            lambda _reply: self._close(question)
        )  # on this loop, as all of them end
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve())
        elif self._round is not None:
            self._round.add(question)

    def _close(self, question: Question) -> None:
        self._open.pop(id(question), None)
        self._progressed, self._reasons = time.monotonic(), ""

    async def _give_up(self) -> None:
        if self._serving is not None:
            await end_all([self._serving])

    async def _serve(self) -> None:
        """Rounds with the present members, one after another, while messages have no reply."""
        error: BaseException | None = None
        try:
            while self._open:
                members = await self._roster.find_answering(self._role)
                if members:
                    self._absent_since = None
                    if self._warned:
                        self._warned = False
                        self._report("scoring")
                    await self._run_round(members)
                else:
                    self._absent_since = self._absent_since or time.monotonic()
                    await asyncio.sleep(POLL_SECONDS)
        except BaseException as raised:
            error = raised
        finally:
            for each in self._under_way:
                each.task.cancel()
            self._serving, self._absent_since, self._under_way = None, None, ()
            for question in list(self._open.values()):
                if isinstance(error, Exception):
                    with suppress(concurrent.futures.InvalidStateError):
                        question.reply.set_exception(error)
                question.reply.cancel()
            self._open.clear()

    async def _run_round(self, members: Sequence[Member]) -> None:
        switches, going_on = Switches(keep=True), {id(each.item): each.item for each in self._under_way}
        self._round = Dispatch(
            list((self._open | going_on).values()),
            members,
            self._client,
            current=lambda: self._roster.present(self._role),
            limits=Limits(self._at_once, self._timeout),
            describe=lambda question: f"{len(question.sequences)} responses for the {self._role.value}",
            observer=Observer(gave_up=self._gave_up),
            switches=switches,
            under_way=self._under_way,
        )
        watch = asyncio.ensure_future(self._close_when_due(self._round, switches, {m.uid for m in members}))
        self._under_way = ()
        try:
            outcome = await self._round.run()
        finally:
            self._round = None
            watch.cancel()
        self._under_way = outcome.under_way
        if outcome.failed and outcome.unanswered and not switches.closing:
            self._reasons = "; ".join(outcome.failed.values())
            log.warning("no %s answers (%s); trying again", self._role.value, self._reasons)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _close_when_due(
        self, present: "Dispatch[Question, None]", switches: Switches, known: Collection[str]
    ) -> None:
        """Closes the round once a further member answers, and when it has had many messages."""
        while True:
            await asyncio.sleep(JOIN_SECONDS)
            new = self._roster.present(self._role).keys() - known
            if (new and new & {m.uid for m in await self._roster.find_answering(self._role)}) or (
                present.size > MOST_ITEMS
            ):
                switches.closing = True
                switches.apply()
                return

    def _gave_up(self, question: Question, reason: str) -> None:
        responses, tokens = len(question.sequences), int(question.sequences.lengths.sum())
        raise ScoringFailed(
            f"the {self._role.value} failed at {responses} responses of {tokens} tokens: {reason}; see its log"
        )
