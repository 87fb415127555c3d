"""The conversation of one program: its requests, one at a time, and the policy's replies to them."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ..turn_text import TurnText
from .chat_request import ChatRequest, Message, Refusal, Rewritten, new_messages, plain_message
from .completion import Completion, completion_of


@dataclass
class PendingTurn:
    """A request for the turn after `messages`, of which the policy has yet to read `new`. `is_open`: a connection waits
    for the reply, or has it; a client that lost its own may ask the same again."""

    messages: list[Message]
    new: list[Message]
    reply: "asyncio.Future[Completion]"
    is_open: bool = True


@dataclass
class Conversation:
    """On one event loop."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    _pending: PendingTurn | None = None
    _number: int = 0
    _over: str = ""
    _arrived: "asyncio.Queue[PendingTurn | Rewritten]" = field(default_factory=asyncio.Queue)

    def ask(self, request: ChatRequest) -> PendingTurn:
        """The turn that a request asks for. Raises Refusal, and so for the last time where the episode ends over it."""
        if self._over:
            raise Refusal(400, self._over)
        messages = [plain_message(each) for each in request.messages]
        if messages[-1]["role"] == "assistant":
            raise Refusal(
                400, "the last message must not be the assistant's, as the policy's turn follows it"
            )
        if (pending := self._pending) is not None:
            if not pending.is_open and pending.messages == messages and request.offers == self.tools:
                pending.is_open = True
                return pending
            if not pending.reply.done():
                raise Refusal(
                    409, "another request of this episode waits for its reply; ask one after another"
                )
        try:
            return self._next(messages, request.offers)
        except Rewritten as error:
            self._over = str(error)
            self._arrived.put_nowait(error)
            raise Refusal(400, self._over) from None

    async def next(self) -> PendingTurn:
        """The next request. Raises Rewritten."""
        arrived = await self._arrived.get()
        if isinstance(arrived, Rewritten):
            raise arrived
        return arrived

    def reply(self, turn: TurnText) -> None:
        """Answers the request with the policy's turn."""
        assert self._pending is not None, "turns follow requests"
        self._number += 1
        self._pending.reply.set_result(completion_of(turn, self._number, offers_tools=bool(self.tools)))

    def end(self, reason: str) -> None:
        """Refuses the request that waits, and all further ones."""
        self._over = self._over or reason
        if self._pending is not None and not self._pending.reply.done():
            self._pending.reply.set_exception(Refusal(400, self._over))
            self._pending.reply.exception()  # nobody may be waiting

    def _next(self, messages: list[Message], tools: list[dict[str, Any]]) -> PendingTurn:
        new = messages
        if (before := self._pending) is None:
            self.tools = tools
        else:
            new = new_messages([*before.messages, plain_message(before.reply.result().message)], messages)
            if tools != self.tools:
                raise Rewritten("the program has changed its tools; an episode has the same from its begin")
        self._pending = PendingTurn(messages, new, asyncio.get_running_loop().create_future())
        self._arrived.put_nowait(self._pending)
        return self._pending
