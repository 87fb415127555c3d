"""Samples that are scored one by one: each ends with a score, or one of each token, or the reason why not."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

PAUSE_SECONDS = 0.5
"""Before a sample is tried a second time; twice as long before each further try, up to LONGEST_PAUSE_SECONDS."""
LONGEST_PAUSE_SECONDS = 8.0
REASON_LENGTH = 500


@dataclass(frozen=True)
class Sample:
    """A response as text, with its prompt and the prompt's row of the dataset. `tokens` is the text that each of its
    tokens adds, where tokens may have scores of their own."""

    prompt: str
    response: str
    row: Mapping[str, Any]
    tokens: Sequence[str] | None = None


@dataclass(frozen=True)
class Failure:
    """The reason why a sample has no score: through no fault of the response, so that it is not worth zero either."""

    reason: str


Result = float | Sequence[float] | Failure
"""Of the whole response; or one number for each of its tokens, where the sample has them."""


class Limits(TypedDict):
    """Calls at once, and seconds of each."""

    concurrency: int
    timeout: float


class Scorer(Protocol):
    """Scores samples in calls of at most `size` samples, `concurrency` of them at once; each has its own deadline."""

    concurrency: int

    def size(self, count: int) -> int:
        """Samples of one call where there are `count` in all."""

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        """One result each. Raises InvalidJob where the job itself is at fault; cancelled, it leaves nothing behind."""


def even_calls(count: int, concurrency: int) -> int:
    """Samples of one call where so many are asked for in as many calls as there may be at once, all of a size."""
    return max(1, -(-count // concurrency))


async def score_all(
    scorer: Scorer, samples: Sequence[Sample], *, retries: int, seconds: float
) -> list[Result]:
    """One result each, after at most `retries` further tries of what failed and at most so many seconds.

    A sample that is still being scored then has failed, for the reason of its last try if it had one.
    """
    found: list[Result] = [Failure(f"no score within {seconds:g} s")] * len(samples)
    places, size, turn = range(len(samples)), scorer.size(len(samples)), asyncio.Semaphore(scorer.concurrency)

    async def settle(waiting: Sequence[int]) -> None:
        for retry in range(retries + 1):
            if retry:
                await asyncio.sleep(min(PAUSE_SECONDS * 2 ** (retry - 1), LONGEST_PAUSE_SECONDS))
            async with turn:
                results = await scorer.score([samples[place] for place in waiting])
            for place, result in zip(waiting, results, strict=True):
                found[place] = result
            waiting = [place for place in waiting if isinstance(found[place], Failure)]
            if not waiting:
                return

    tasks = [asyncio.ensure_future(settle(places[i : i + size])) for i in range(0, len(samples), size)]
    if not tasks:
        return found
    try:
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return found


def failed(reason: str) -> Failure:
    """A failure whose reason has a bounded length: it may quote what others wrote."""
    return Failure(reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 3] + "...")
