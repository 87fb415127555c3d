"""An episode that an agent plays: each of its requests is answered with a turn of the policy."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from rlhf_api.host.tasks import end_all

from ..adapter import Opening, Unfit
from ..step import AgentStep
from ..turn_text import TurnText
from .agent import Agent, Agents
from .conversation import Conversation, PendingTurn
from .server import CompletionsServer


class EpisodeOfAgent:
    """The first request opens the episode, what each further one adds replies to a turn, or all of it where it begins a
    branch, and the agent's end ends it with its reward. Calls raise TimeoutError after `seconds`."""

    def __init__(self, agents: Agents, server: CompletionsServer, seconds: float) -> None:
        self._agents, self._server, self._seconds = agents, server, seconds
        self._conversation, self._closing = Conversation(), AsyncExitStack()
        self._agent: Agent | None = None
        self._ended: asyncio.Future[float] | None = None

    async def reset(self, row: Mapping[str, Any]) -> Opening:
        """Starts the agent. Raises Unfit for one that asks nothing."""
        access = await self._closing.enter_async_context(self._server.serving(self._conversation))
        self._agent = await self._agents.start(row, access)
        self._closing.push_async_callback(self._agent.end)
        self._ended = asyncio.ensure_future(self._agent.ended())
        pending = await self._next()
        if pending is None:
            await self._reward()
            raise Unfit("the program has ended without a request to OPENAI_BASE_URL")
        return Opening(messages=pending.new, tools=self._conversation.tools)

    async def step(self, turn: TurnText) -> AgentStep:
        """Answers the program's request. Raises Unfit for a program that ends without a reward."""
        self._conversation.reply(turn)
        pending = await self._next()
        if pending is None:
            return AgentStep([], await self._reward(), done=True)
        tools = self._conversation.tools if pending.branch else None
        return AgentStep(pending.new, branch=pending.branch, tools=tools)

    async def end(self, *, cut: bool) -> float:
        """Ends the agent; the one that a limit has `cut` may end with a reward first."""
        try:
            if not cut or self._agent is None:
                return 0.0
            self._agent.cut(self._conversation)
            async with self._limit():
                return await self._reward()
        except Unfit as error:
            raise Unfit(f"a limit of spec.environment ended the episode, and then {error}") from None
        finally:
            await self._closing.aclose()
            if self._ended is not None:
                await end_all([self._ended])

    async def _next(self) -> PendingTurn | None:
        """The next request; None once the program has ended."""
        asking = asyncio.ensure_future(self._conversation.next())
        try:
            async with self._limit():
                either: list[asyncio.Future[Any]] = [asking, self._end_of_process]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            asking.cancel()

    async def _reward(self) -> float:
        return await asyncio.shield(self._end_of_process)

    @property
    def _end_of_process(self) -> "asyncio.Future[float]":
        assert self._ended is not None, "reset comes first"
        return self._ended

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except TimeoutError:
            message = f"the program took longer than {self._seconds:g} s (spec.environment.turnSeconds)"
            raise TimeoutError(message) from None
