"""The conversation of one program: its requests, one at a time, and the policy's replies to them. A request that does
not continue the one before, as with a history that was rewritten, begins a branch."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ..turn_text import TurnText
from .chat_request import ChatRequest, Message, Refusal, new_messages, plain_message
from .completion import Completion, completion_of


@dataclass
class PendingTurn:
    """A request for the turn after `messages`, of which the policy has yet to read `new`: all on a `branch`, which does
    not continue the conversation so far. `is_open`: a connection waits for the reply, or has it; a client that lost its
    own may ask the same again."""

    messages: list[Message]
    new: list[Message]
    branch: bool
    reply: "asyncio.Future[Completion]"
    is_open: bool = True


@dataclass
class Conversation:
    """On one event loop."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    _pending: PendingTurn | None = None
    _number: int = 0
    _over: str = ""
    _arrived: "asyncio.Queue[PendingTurn]" = field(default_factory=asyncio.Queue)

    def ask(self, request: ChatRequest) -> PendingTurn:
        """The turn that a request asks for. Raises Refusal."""
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
        return self._next(messages, request.offers)

    async def next(self) -> PendingTurn:
        """The next request."""
        return await self._arrived.get()

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
        new, branch = messages, False
        if (before := self._pending) is not None:
            history = [*before.messages, plain_message(before.reply.result().message)]
            more = new_messages(history, messages) if tools == self.tools else []
            new, branch = more or messages, not more
        self.tools = tools
        self._pending = PendingTurn(messages, new, branch, asyncio.get_running_loop().create_future())
        self._arrived.put_nowait(self._pending)
        return self._pending
