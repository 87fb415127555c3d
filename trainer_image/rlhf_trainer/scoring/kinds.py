"""Table of the kinds of reward, one line each: what starts the scorer of an entry of `spec.reward.functions`, and of
`spec.evaluation.metrics`."""

from collections.abc import Awaitable, Callable

from rlhf_api.sections.reward import ScoreFunction

from . import function_pool, program, service
from .rewards import Function
from .samples import Scorer

StartScorer = Callable[[str, ScoreFunction], Awaitable[Scorer]]
"""(where the entry stands in the manifest, the entry) -> its scorer, ready. Raises InvalidJob if it cannot be made."""

KINDS: dict[str, StartScorer] = {
    "function": function_pool.start,
    "url": service.start,
    "program": program.start,
}
"""Starts a scorer of each kind of reward, by the name of its field of `RewardKind`."""


async def start(where: str, entry: ScoreFunction, weight: float = 1.0) -> Function:
    """A reward or a metric of the manifest. Raises InvalidJob if its scorer cannot be made."""
    scorer = await KINDS[entry.kind](where, entry)
    return Function(entry.metric, weight, entry.retries, scorer)
