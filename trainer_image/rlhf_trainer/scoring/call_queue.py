"""Queue of a reward's calls: samples of any number of messages, at most `concurrency` calls at once."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from .samples import CallFailure, Failure, Result, Sample, Scorer

PAUSE_SECONDS = 0.5
"""Backoff before the first retry of a sample, seconds; doubled for each further one, up to LONGEST_PAUSE_SECONDS."""
LONGEST_PAUSE_SECONDS = 8.0
MOST_PER_CALL = 8
"""Samples of one call: more would make a call of a slow function longer than its timeout."""


@dataclass(order=True)
class _Queued:
    """A sample in the queue, by its number: the oldest is called first, also for a retry."""

    number: int
    sample: Sample = field(compare=False)
    result: "asyncio.Future[Result]" = field(compare=False)
    deadline: float | None = field(default=None, compare=False)
    """Time by which its tries end; None before the first."""
    last: Failure | None = field(default=None, compare=False)
    tries: int = field(default=0, compare=False)
    alone: bool = field(default=False, compare=False)
    seconds: float = field(default=0.0, compare=False)
    """Its share of the time of its calls."""


class CallQueue:
    """Calls a scorer for samples as they come, and for those that wait meanwhile in even parts.

    A failed sample is tried again, at most `retries` times and within `seconds` of the begin of its first call: time in
    the queue does not count. Use it on one event loop.
    """

    def __init__(self, scorer: Scorer, *, retries: int, seconds: float) -> None:
        self._scorer, self._retries, self._seconds = scorer, retries, seconds
        self._late = Failure(f"no score within {seconds:g} s (spec.reward.timeoutSeconds)")
        self._numbers, self._waiting, self._running = count(), list[_Queued](), 0
        self._calls = set[asyncio.Future[None]]()

    async def score(self, samples: Sequence[Sample]) -> tuple[list[Result], float]:
        """One result each, and the seconds of their calls. Raises InvalidJob if the job itself is at fault.

        If it is cancelled, samples whose call has not begun are dropped.
        """
        loop = asyncio.get_running_loop()
        queued = [_Queued(next(self._numbers), sample, loop.create_future()) for sample in samples]
        self._put(queued)
        try:
            results = await asyncio.gather(*(each.result for each in queued))
        finally:
            for each in queued:
                each.result.cancel()
        return results, sum(each.seconds for each in queued)

    def _put(self, queued: Sequence[_Queued]) -> None:
        for each in queued:
            heappush(self._waiting, each)
        size = min(
            MOST_PER_CALL, self._scorer.size(len(self._waiting))
        )  # of all that wait, before any is taken
        while self._running < self._scorer.concurrency and (call := self._next_call(size)):
            self._running += 1
            task = asyncio.ensure_future(self._call(call))
            self._calls.add(task)  # the loop itself keeps no reference
            task.add_done_callback(self._calls.discard)

    def _next_call(self, size: int) -> list[_Queued]:
        """The `size` oldest samples; only such as began together, so that they have one deadline."""
        call = list[_Queued]()
        while self._waiting and len(call) < size:
            first = self._waiting[0]
            if first.last is not None and first.deadline is not None and time.monotonic() > first.deadline:
                _settle(first, first.last)
            if not first.result.done():
                if call and (call[0].alone or first.alone or call[0].deadline != first.deadline):
                    break
                call.append(first)
            heappop(self._waiting)
        return call

    async def _call(self, call: Sequence[_Queued]) -> None:
        began = time.monotonic()
        deadline = call[0].deadline or began + self._seconds
        try:
            async with asyncio.timeout(deadline - began):
                results = await self._scorer.score([each.sample for each in call])
        except TimeoutError:
            results = [each.last or self._late for each in call]
        except Exception as error:
            for each in call:
                if not each.result.done():
                    each.result.set_exception(error)
            results = []
        finally:
            self._running -= 1
        now, again = time.monotonic(), dict[float, list[_Queued]]()
        for each, result in zip(call, results, strict=bool(results)):
            each.deadline, each.seconds = deadline, each.seconds + (now - began) / len(call)
            pause = self._pause(each, result)
            if pause is None or now + pause > deadline:
                _settle(each, result)
            else:
                again.setdefault(pause, []).append(each)
        for pause, those in again.items():
            asyncio.get_running_loop().call_later(pause, self._put, those)
        self._put(())

    def _pause(self, each: _Queued, result: Result) -> float | None:
        """Seconds until a failed sample is tried again; None for a score, and after the last try."""
        if not isinstance(result, Failure):
            return None
        each.last = result
        if isinstance(result, CallFailure):
            each.alone = True
            return 0.0
        each.tries += 1
        if each.tries > self._retries:
            return None
        return max(min(PAUSE_SECONDS * 2.0 ** (each.tries - 1), LONGEST_PAUSE_SECONDS), result.wait)


def _settle(each: _Queued, result: Result) -> None:
    if not each.result.done():
        each.result.set_result(result)
