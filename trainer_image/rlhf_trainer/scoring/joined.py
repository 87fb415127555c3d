"""Responses that end within a moment, scored as one message: each message costs both sides about two milliseconds."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakSet

import torch

from rlhf_api.contract.run import Member

from ..tensors.records import Sequences
from .messages import parse_report, places
from .questions import Question, QuestionClient

WINDOW_SECONDS = 0.005
"""Wait for further questions before a message is sent, seconds."""


@dataclass(eq=False)
class _Message:
    """Questions of one message, and those of them that still wait for its reply."""

    questions: list[Question] = field(default_factory=list)
    waiting: set[Question] = field(default_factory=set)
    sending: "asyncio.Task[None]" = field(init=False)


class JoiningClient:
    """Sends questions of one response each, with the same array and header, as messages of at most `most` of them, and
    gives each its part of the reply. Implements `Client`.

    One whose message failed, or was given up, is sent alone from then on: only the question at fault fails again.
    """

    def __init__(self, client: QuestionClient, most: int) -> None:
        self._client, self._most = client, most
        self._open = dict[str, _Message]()
        """The message of each member that is not sent yet, by the member's address."""
        self._alone = WeakSet[Question]()

    async def ask(self, member: Member, question: Question, progress: Callable[[], None]) -> None:
        if question in self._alone:
            await self._client.ask(member, question, progress)
            return
        message = self._open.get(member.address)
        if message is None or len(message.questions) == self._most:
            message = self._open[member.address] = _Message()
            message.sending = asyncio.ensure_future(self._send(member, message))
        message.questions.append(question)
        message.waiting.add(question)
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
        try:
            await asyncio.sleep(WINDOW_SECONDS)
        finally:
            if self._open.get(member.address) is message:
                del self._open[member.address]
        questions = message.questions
        joined = Sequences.join([question.sequences for question in questions])
        rows = [row for question in questions for row in question.rows or ()]
        whole = Question(joined, questions[0].array, rows, questions[0].header)
        await self._client.ask(member, whole, lambda: None)
        values, header = whole.reply.result()
        reports = parse_report(header, len(questions)).of_each(len(questions))
        for i, (question, report) in enumerate(zip(questions, reports, strict=True)):
            if question in message.waiting:  # or else another member may have been asked
                its_places = places(whole.array, joined, torch.tensor([i]))
                question.reply.set_result((values[its_places], report.model_dump(mode="json")))
