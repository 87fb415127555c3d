"""Responses that end within a moment, scored as one message: each message costs both sides about two milliseconds."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

import torch

from rlhf_api.contract.run import Member

from ..tensors.records import Sequences
from .messages import parse_report, places
from .questions import Question, QuestionClient

WINDOW_SECONDS = 0.005
"""Longest wait for further questions before a message is sent, seconds."""
QUICK_SECONDS = 0.25
"""Time within which a member replies quickly, seconds: what a message costs counts then, and no response waits long for
the others of its message."""
MOST_TO_QUICK = 32
"""Most questions of a message to a member whose last reply was quick."""


@dataclass(eq=False)
class _Message:
    """Questions of one message, and those of them that still wait for its reply."""

    questions: list[Question] = field(default_factory=list)
    waiting: set[Question] = field(default_factory=set)
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is full, or has waited for long enough."""
    sending: "asyncio.Task[None]" = field(init=False)


class JoiningClient:
    """Sends questions of one response each, with the same array and header, as messages of at most `most` of them, to a
    member whose last reply was quick of `most_to_quick`, and gives each its part of the reply. Implements `Client`.

    One whose message failed, or was given up, is sent alone from then on: only the question at fault fails again.
    """

    def __init__(self, client: QuestionClient, most: int, most_to_quick: int) -> None:
        self._client, self._most, self._most_to_quick = client, most, most_to_quick
        self._quick = set[str]()
        """Addresses of members whose last reply was quick."""
        self._open = dict[str, _Message]()
        """The message of each member that is not sent yet, by the member's address."""
        self._alone = WeakSet[Question]()

    async def ask(self, member: Member, question: Question, progress: Callable[[], None]) -> None:
        if question in self._alone:
            await self._client.ask(member, question, progress)
            return
        message = self._open.get(member.address)
        if message is None or message.due.is_set():
            message = self._open[member.address] = _Message()
            message.sending = asyncio.ensure_future(self._send(member, message))
        message.questions.append(question)
        message.waiting.add(question)
        if len(message.questions) >= (self._most_to_quick if member.address in self._quick else self._most):
            message.due.set()
        try:
            await asyncio.shield(message.sending)
        except BaseException:
            self._alone.add(question)
            raise
        finally:
            message.waiting.discard(question)
            if not message.waiting:
                message.sending.cancel()

    async def listens(self, member: Member) -> bool:
        return await self._client.listens(member)

    async def _send(self, member: Member, message: _Message) -> None:
        asyncio.get_running_loop().call_later(WINDOW_SECONDS, message.due.set)
        try:
            await message.due.wait()
        finally:
            if self._open.get(member.address) is message:
                del self._open[member.address]
        questions = message.questions
        joined = Sequences.join([question.sequences for question in questions])
        rows = [row for question in questions for row in question.rows or ()]
        whole = Question(joined, questions[0].array, rows, questions[0].header)
        began = time.monotonic()
        await self._client.ask(member, whole, lambda: None)
        is_quick = time.monotonic() < began + QUICK_SECONDS
        (self._quick.add if is_quick else self._quick.discard)(member.address)
        values, header = whole.reply.result()
        reports = parse_report(header, len(questions)).of_each(len(questions))
        for i, (question, report) in enumerate(zip(questions, reports, strict=True)):
            if question in message.waiting:  # or else another member may have been asked
                its_places = places(whole.array, joined, torch.tensor([i]))
                question.reply.set_result((values[its_places], report.model_dump(mode="json")))
