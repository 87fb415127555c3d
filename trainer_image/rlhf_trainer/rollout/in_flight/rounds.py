"""Dispatches prompts to the generators that hold the same weights."""

from collections.abc import Sequence
from concurrent.futures import Future

from rlhf_api.contract.run import Member

from ...dispatch.assignments import Limits
from ...dispatch.dispatch import Current, Dispatch, Observer, Switches
from ...dispatch.outcomes import Outcome, UnderWay
from ...transport.http import HttpClient
from ..clients.engine_client import EngineClient
from ..partial_rollout import PartialRollout

Round = Outcome[PartialRollout, PartialRollout]
"""Prompts whose responses are complete, and the outcome of the others."""
NOBODY: Observer[PartialRollout, PartialRollout] = Observer()


def start_round(
    http: HttpClient,
    client: EngineClient,
    works: Sequence[PartialRollout],
    members: Sequence[Member],
    *,
    current: Current,
    limits: Limits,
    observer: Observer[PartialRollout, PartialRollout] = NOBODY,
    switches: Switches | None = None,
    last_progress: dict[str, float] | None = None,
    under_way: Sequence[UnderWay[PartialRollout, PartialRollout]] = (),
) -> "Future[Round]":
    """Asks `members` on the thread of `http`; see `Dispatch`.

    Each prompt ends with all its responses, refused with a reason, or unanswered.
    """
    return http.start(
        Dispatch(
            works,
            members,
            client,
            current=current,
            limits=limits,
            describe=lambda work: f"prompt {work.prompt.id}",
            observer=observer,
            switches=switches,
            last_progress=last_progress,
            under_way=under_way,
        ).run()
    )
