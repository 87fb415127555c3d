"""Protocol of a generation engine's client; another engine than vLLM needs one more implementation."""

from collections.abc import Callable
from typing import Protocol

from rlhf_api.contract.run import Member

from ...dispatch.outcomes import Client
from ..partial_rollout import PartialRollout


class EngineClient(Client[PartialRollout, PartialRollout], Protocol):
    """Client of the servers of one engine."""

    async def ask(
        self, member: Member, work: PartialRollout, progress: Callable[[], None], /
    ) -> PartialRollout:
        """Extends the responses of `work` until they are complete, each token with the weight version that sampled it.

        `progress` is called whenever new tokens arrive. Cancelling it aborts the request on the server; tokens so far
        are kept, and another call continues from there.

        Raises:
            dispatch.outcomes.Refused: the engine cannot respond to this prompt. dispatch.outcomes.Interrupted: the
            server interrupted the request, as before new weights.
            HttpError: refused as every server would (`of_request`), or the server failed. aiohttp.ClientError, OSError,
            ValueError: the server failed or its reply is invalid.
        """
