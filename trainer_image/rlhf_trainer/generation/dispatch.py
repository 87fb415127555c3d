"""Dispatches prompts to the generators that hold the same weights."""

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future

from rlhf_api.run import Member

from ..comms.dispatch import Current, Dispatch, Switches
from ..comms.http import Background
from ..comms.outcomes import Outcome
from .engine import EngineClient
from .work import Work

Round = Outcome[Work, Work]
"""Prompts whose responses are complete, and the outcome of the others."""


def start_round(
    http: Background,
    client: EngineClient,
    works: Sequence[Work],
    members: Sequence[Member],
    *,
    current: Current,
    concurrent: int,
    silence: float,
    left: Callable[[int], None] = lambda _count: None,
    asked: Callable[[Work], None] = lambda _work: None,
    arrived: Callable[[Work], None] = lambda _work: None,
    switches: Switches | None = None,
) -> "Future[Round]":
    """Asks `members` on the thread of `http`; see `Dispatch`. `asked` is told there of each prompt before a member gets
    it.

    Each prompt ends with all its responses, refused with a reason, or unanswered.
    """

    def ask(member: Member, work: Work, progress: Callable[[], None]) -> Awaitable[Work]:
        asked(work)
        return client.ask(member, work, progress)

    return http.start(
        Dispatch(
            works,
            members,
            ask=ask,
            listens=client.listens,
            current=current,
            concurrent=concurrent,
            silence=silence,
            describe=lambda work: f"prompt {work.prompt.id}",
            left=left,
            arrived=arrived,
            switches=switches,
        ).run()
    )
