"""What the trainer needs of a generation engine; another one than vLLM is one more file that implements it."""

from collections.abc import Callable
from typing import Protocol

from rlhf_api.run import Member

from ..records import Prompt, Rollout


class EngineClient(Protocol):
    """Speaks to servers of one engine."""

    async def ask(
        self, member: Member, prompt: Prompt, version: int, progress: Callable[[], None]
    ) -> list[Rollout]:
        """All responses to one prompt, by a server that holds weight version `version`.

        `progress` is called whenever the server gave new tokens. Cancelled, it gives the request up, and the server
        stops working on it.

        Raises:
            comms.dispatch.Refused: the engine cannot respond to this prompt.
            HttpError: refused (4xx) as every server would, or the server failed (5xx).
            aiohttp.ClientError, OSError, ValueError: the server failed, or its reply is not understood.
        """

    async def listens(self, member: Member) -> bool:
        """Whether the server takes connections; true where it is merely slow."""
