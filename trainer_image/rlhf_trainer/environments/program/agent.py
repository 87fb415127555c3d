"""Agents, which play an episode by asking the policy over the OpenAI API: a program, or an environment's own client."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from .conversation import Conversation
from .server import Access


class Agent(Protocol):
    """Of one episode. `end` has to be awaited."""

    async def ended(self) -> float:
        """Waits for its end; its reward. Raises Unfit for an end without one."""
        ...

    def cut(self, conversation: Conversation) -> None:
        """A limit ended the episode: no request gets a turn, and the agent is to end with its reward so far."""
        ...

    async def end(self) -> None:
        """Ends it with all that it has started."""
        ...


class Agents(Protocol):
    """Of one worker."""

    def serving(self) -> AbstractAsyncContextManager[None]:
        """Opens what all of them share, meanwhile."""
        ...

    async def start(self, row: Mapping[str, Any], access: Access) -> Agent:
        """An agent that asks the policy by this access. Raises OSError, Unfit."""
        ...
