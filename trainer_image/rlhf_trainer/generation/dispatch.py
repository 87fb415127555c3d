"""Prompts to generators: one round of requests among those that hold the same weights."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rlhf_api.run import Member

from ..comms.dispatch import Current, Dispatch, Outcome
from ..comms.http import Background
from ..records import Prompt, Rollout
from .engine import EngineClient

Round = Outcome[Prompt, list[Rollout]]
"""The responses to each prompt, and what became of the other prompts."""


def start_round(
    http: Background,
    client: EngineClient,
    prompts: Sequence[Prompt],
    members: Sequence[Member],
    version: int,
    *,
    current: Current,
    concurrent: int,
    silence: float,
    left: Callable[[int], None] = lambda _count: None,
    arrived: Callable[[list[Rollout]], None] = lambda _rollouts: None,
) -> "Future[Round]":
    """Asks `members`, all of which hold weight version `version`, on the thread of `http`; see `Dispatch`.

    No prompt is scored as if it had no response: it has all of them, is refused with a reason, or is still unanswered.
    """

    async def ask(member: Member, prompt: Prompt, progress: Callable[[], None]) -> list[Rollout]:
        return await client.ask(member, prompt, version, progress)

    return http.start(
        Dispatch(
            prompts,
            members,
            ask=ask,
            listens=client.listens,
            current=current,
            concurrent=concurrent,
            silence=silence,
            describe=lambda prompt: f"prompt {prompt.id}",
            left=left,
            arrived=arrived,
        ).run()
    )
