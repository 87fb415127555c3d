"""Rollouts of the generators: to given prompts, and of episodes requested ahead of training."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from rlhf_api.contract.timeline import WAIT

from ..data.sampling_request import SamplingRequest
from ..dispatch.roster import Stopped
from ..process.timeline import RECORDER
from ..ranks.context import TrainerContext
from ..tensors.records import Prompt
from ..weights.publisher import Publisher
from .in_flight.ahead import EpisodesAhead
from .in_flight.fleet import Fleet
from .in_flight.requests import Requests, Responses
from .in_flight.saved_responses import BLOB, decode, encode
from .partial_rollout import Ended, PartialRollout, longest_first, nobody, rollouts
from .rollouts import Issue, Rollouts

log = logging.getLogger(__name__)


class GeneratorRollouts(Rollouts):
    """Owns the requests that go on while weights are published, the window of episodes, and the policy's version."""

    def __init__(self, ctx: TrainerContext, fleet: Fleet, weights: Publisher, ended: Ended = nobody) -> None:
        """`ended` is called, on rank 0, with each response of an episode requested ahead when that has ended."""
        super().__init__()
        self._ctx, self._fleet, self.weights = ctx, fleet, weights
        self.is_ahead = ctx.spec.rollout.max_staleness > 0
        keep = ctx.spec.rollout.in_flight == "keep"
        self.requests = Requests(fleet.start, weights.drop, ctx.stop, keep=keep)
        """Those of the window, on rank 0."""
        self._ahead = EpisodesAhead(ctx.spec, self.requests, fleet.fresh, ended, asks=ctx.ranks.first)
        self._busy = 0.0  # seconds in which there were other requests alone than those ahead
        self._reported = 0.0, 0

    @property
    def is_stale(self) -> bool:
        return self.weights.version != self.version

    def advance(self, version: int, issue: Issue, *, collected: bool) -> dict[str, float]:
        self.version = version
        if self.weights.version < 0 or version % self._ctx.spec.weights.every_steps == 0:
            self.publish(issue, collected=collected)
        return self.weights.figures()

    def publish(self, issue: Issue, *, collected: bool) -> None:
        self.weights.publish(self.version, self.requests.close)
        if self.is_ahead:
            self.requests.end()
            self._ahead.extend(self.version, issue, collected=collected)
            self.requests.begin()

    def yield_gpus(self) -> None:
        self.weights.yield_gpus()

    def find_other_weights(self) -> str:
        return self.weights.changed()

    def answer(
        self,
        prompts: list[Prompt],
        request: SamplingRequest,
        ended: Ended = nobody,
        *,
        enough: int | None = None,
    ) -> Responses:
        fresh = partial(self._fleet.fresh, prompts, request, ended=ended)
        (responses,) = self._responses(fresh, None, enough)
        return responses

    def stream(
        self,
        prompts: Sequence[Prompt],
        size: int | None,
        *,
        ended: Ended = nobody,
        enough: int | None = None,
    ) -> Iterator[Responses]:
        """The responses to all prompts, those to `size` prompts at a time as they come, a short rest with the last; all
        at once for None. `ended` is called with each response at its end, on the thread of the requests. Once all
        responses to `enough` prompts are complete, the requests of the others are cancelled, and they are named
        `stopped`.

        On rank 0; on the others as many empty batches. Prompts of a generator that fails go to the others; when none
        is left they wait for a replacement, which gets the policy's weights. After a first batch these may have moved
        on from the version that the prompts were asked with: then the stream ends with what there is, and names the
        other prompts `unanswered`. Requests under way are cancelled when this is left before its end.

        Raises:
            Unavailable: generators come, and fail at every prompt.
            Stopped: the run is to stop, on every rank.
        """
        return self._responses(partial(self._fleet.fresh, prompts, ended=ended), size, enough)

    def episode(self) -> Responses:
        """Waits for the responses to the oldest episode's prompts, on rank 0; empty on the others.

        Raises:
            Unavailable: the generators that respond fail at every prompt.
            Stopped: the run is to stop, on every rank.
        """
        # The one before was trained on: a stop while this one is waited for does not put it back.
        self._ahead.forget_last()
        while (outcome := self._wait(self._ahead.wait)) == "publish":
            self.weights.publish(self.version, self.requests.close)
            self.requests.end()
            self.requests.begin()
        if outcome == "stop":
            raise Stopped("stopped while the generators were at work")
        return self._ahead.take()

    def put_back(self) -> None:
        self._ahead.put_back()

    def figures(self) -> dict[str, float]:
        """`generators_idle_seconds`, in which no request was under way, if episodes are requested ahead;
        `responses_continued`: those that new weights, or a generator that died, drained or was late, interrupted and
        another request continued."""
        if not self._ctx.ranks.first:
            return {}
        (idle, continued), self._reported = self._reported, (self._idle_seconds, self._fleet.continued)
        metrics = {"responses_continued": float(self._reported[1] - continued)}
        return metrics | ({"generators_idle_seconds": self._reported[0] - idle} if self.is_ahead else {})

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        if not self.is_ahead:
            return {}
        assert self._ctx.services is not None

        async def copied() -> list[PartialRollout]:  # on the thread that appends to them
            return self._ahead.copy()

        return {BLOB: partial(encode, self._ctx.services.http.run(copied()))}

    def restore(self, data: bytes | None) -> None:
        if self.is_ahead:
            self._ahead.restore(decode(data) if data else [])

    @property
    def _idle_seconds(self) -> float:
        """Total time without any request since the first one ahead of training, seconds; on rank 0."""
        return self.requests.idle_seconds - self._busy

    def _wait(self, outcome: Callable[[], str]) -> str:
        """The outcome of a wait for responses, which is rank 0's."""
        with RECORDER.measure(f"{WAIT}responses"):
            return self._ctx.ranks.broadcast_str(outcome)

    def _responses(
        self, fresh: Callable[[], list[PartialRollout]], size: int | None, enough: int | None
    ) -> Iterator[Responses]:
        """See `stream`; `fresh` makes the works on rank 0."""
        weights, ranks = self.weights, self._ctx.ranks
        weights.ensure_current(self.version, self.requests.close)
        batches = self._batches(fresh(), size, enough) if ranks.first else iter(())
        while True:
            batch: Responses | None = None

            def following() -> str:
                nonlocal batch
                try:
                    batch = next(batches)
                except StopIteration:
                    return "end"
                except Stopped:
                    return "stop"
                return "publish" if batch is None else "responses"

            match self._wait(following):
                case "end":
                    return
                case "stop":
                    raise Stopped("stopped while the generators were at work")
                case "publish":
                    weights.publish(self.version, self.requests.close)
                case _:
                    yield batch or Responses()

    def _batches(
        self, works: Sequence[PartialRollout], size: int | None, enough: int | None
    ) -> Iterator[Responses | None]:
        """The next batches, on rank 0. None if no generator is left: weights must be published before the next
        batch."""
        places = {work.prompt.id: place for place, work in enumerate(works)}
        most = len(works) if enough is None else enough
        batches = 1 if size is None else max(1, most // size)
        requests = Requests(self._fleet.start, self.weights.drop, self._ctx.stop)
        requests.answered = {work.prompt.id: work for work in works if work.is_complete}  # given ones
        requests.waiting = longest_first(work for work in works if not work.is_complete)
        answered, taken, idle = requests.answered, 0, self.requests.idle_seconds
        requests.begin()
        try:
            while True:
                last = size is None or taken >= size * (batches - 1)
                goal = most if size is None or last else taken + size
                if requests.until(lambda goal=goal: len(answered) >= goal):  # type: ignore[misc]
                    if last:
                        break
                    yield Responses(rollouts(_in_order(list(answered.values())[taken:goal], places)))
                    taken = goal
                elif requests.waiting and not taken:
                    yield None
                    requests.begin()
                else:
                    break
            requests.stop()
        finally:
            requests.cancel()
            self._busy += self.requests.idle_seconds - idle
        rest = _in_order(list(answered.values())[taken:most], places)
        others = [*list(answered)[most:], *(work.prompt.id for work in requests.waiting)]
        unanswered, stopped = ([], others) if len(answered) >= most else (others, [])
        if stopped:
            self._ctx.report(queue=0)
        if unanswered:
            log.warning(
                "no generator is left in this step; %d prompts are deferred to the next step", len(unanswered)
            )
        yield Responses(rollouts(rest), requests.requeued, requests.refused, unanswered, stopped)


def _in_order(works: Sequence[PartialRollout], places: Mapping[str, int]) -> list[PartialRollout]:
    """Works in the order of their prompts."""
    return sorted(works, key=lambda work: places[work.prompt.id])
