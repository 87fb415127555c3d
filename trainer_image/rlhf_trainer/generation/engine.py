"""Protocol of a generation engine, as the trainer needs it; one more file implements another than vLLM."""

from collections.abc import Callable
from typing import Protocol

from rlhf_api.run import Member

from .work import Work


class EngineClient(Protocol):
    """Speaks to servers of one engine."""

    async def ask(self, member: Member, work: Work, progress: Callable[[], None]) -> Work:
        """Adds to the responses of `work` until they are whole, each token with the weight version that sampled it.

        `progress` is called whenever the server gave new tokens. Cancelled, it gives the request up, and the server
        stops working on it; what came stays, and another call goes on from there.

        Raises:
            comms.outcomes.Refused: the engine cannot respond to this prompt.
            comms.outcomes.Interrupted: the server stopped, as before new weights.
            HttpError: refused (4xx) as every server would, or the server failed (5xx).
            aiohttp.ClientError, OSError, ValueError: the server failed, or its reply is not understood.
        """

    async def listens(self, member: Member) -> bool:
        """True if the server takes connections, also where it is merely slow."""
