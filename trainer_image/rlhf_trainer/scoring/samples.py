"""Samples scored one by one: each gets a score, a score for each token, or a failure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

REASON_LENGTH = 500


@dataclass(frozen=True)
class Sample:
    """A response as text, with its prompt and the prompt's dataset row. `tokens`: the text that each token adds, if
    tokens may have scores of their own."""

    prompt: str
    response: str
    row: Mapping[str, Any]
    tokens: Sequence[str] | None = None


@dataclass(frozen=True)
class Failure:
    """Reason why a sample has no score. Not the response's fault, so it does not score zero either."""

    reason: str
    wait: float = 0.0
    """Seconds before which it is of no use to try again."""


@dataclass(frozen=True)
class CallFailure(Failure):
    """A call for several samples failed, any of which may be at fault: each is asked for alone."""


Result = float | Sequence[float] | Failure
"""Score of the whole response; or one for each token, if the sample has `tokens`."""


class Scorer(Protocol):
    """Scores samples in calls of at most `size` samples, `concurrency` of them at once, each with its own timeout."""

    concurrency: int

    def size(self, count: int) -> int:
        """Number of samples per call, of `count` in all."""

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        """One result each. Raises InvalidJob if the job itself is at fault; a cancelled call cleans up after itself."""


def even_calls(count: int, concurrency: int) -> int:
    """Number of samples per call if `count` are split evenly into `concurrency` calls."""
    return max(1, -(-count // concurrency))


def failed(reason: str, wait: float = 0.0) -> Failure:
    """A failure with its reason cut to REASON_LENGTH: it may quote foreign text."""
    return Failure(reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 3] + "...", wait)
