"""Samples scored one by one: each gets a score, a score for each token, or a failure."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

PAUSE_SECONDS = 0.5
"""Backoff before the first retry of a sample, seconds; doubled for each further one, up to LONGEST_PAUSE_SECONDS."""
LONGEST_PAUSE_SECONDS = 8.0
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


async def score_all(
    scorer: Scorer, samples: Sequence[Sample], *, retries: int, seconds: float
) -> list[Result]:
    """One result each, after at most `retries` retries of failures and at most `seconds` seconds.

    Samples without a result by then have failed, with the reason of their last try if they had one. A failure that
    would have to wait longer than that for its retry is not retried.
    """
    deadline = time.monotonic() + seconds
    late = Failure(f"no score within {seconds:g} s (spec.reward.timeoutSeconds)")
    found: list[Result] = [late] * len(samples)
    places, size, turn = range(len(samples)), scorer.size(len(samples)), asyncio.Semaphore(scorer.concurrency)

    async def ask(waiting: Sequence[int]) -> None:
        results = await scorer.score([samples[place] for place in waiting])
        for place, result in zip(waiting, results, strict=True):
            found[place] = result
        for place, result in zip(waiting, results, strict=True):
            if isinstance(result, CallFailure):
                await ask([place])

    async def settle(waiting: Sequence[int]) -> None:
        for retry in range(retries + 1):
            if retry:
                waits = (failure.wait for place in waiting if isinstance(failure := found[place], Failure))
                pause = max(min(PAUSE_SECONDS * 2 ** (retry - 1), LONGEST_PAUSE_SECONDS), *waits)
                if time.monotonic() + pause > deadline:
                    return
                await asyncio.sleep(pause)
            async with turn:
                await ask(waiting)
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


def failed(reason: str, wait: float = 0.0) -> Failure:
    """A failure with its reason cut to REASON_LENGTH: it may quote foreign text."""
    return Failure(reason if len(reason) <= REASON_LENGTH else reason[: REASON_LENGTH - 3] + "...", wait)
