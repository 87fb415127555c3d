"""The generators as seen by the training loop: publish weights, sample responses."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role
from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties
from rlhf_api.sections.sampling import Sampling

from ..dispatch.assignments import Limits
from ..dispatch.dispatch import Observer, Switches
from ..dispatch.outcomes import UnderWay
from ..dispatch.roster import Stopped
from ..models.trained_model import TrainedModel
from ..process import faults
from ..ranks.context import TrainerContext
from ..tensors.records import Prompt
from ..weights.broadcaster import Broadcaster
from .engine_client import EngineClient
from .partial_rollout import Ended, PartialRollout, longest_first, nobody, rollouts
from .published import PublishedWeights
from .requests import Requests, Responses
from .rounds import Round, start_round

log = logging.getLogger(__name__)


class Fleet:
    """The generators, and the policy's `weights` as they have them. Its methods are collectives.

    Prompts of a generator that dies are sent to another one.
    """

    def __init__(
        self, ctx: TrainerContext, policy: TrainedModel, sync: Broadcaster | None, client: EngineClient | None
    ) -> None:
        """`sync` and `client` on rank 0 only."""
        self._ctx, self._client = ctx, client
        self.weights = PublishedWeights(ctx, policy, sync, committing=lambda: self.ahead.close())
        keep = ctx.spec.rollout.in_flight == "keep"
        self.ahead = Requests(self._start, self.weights.left_out, ctx.stop, keep=keep)
        """Requests that go on while weights are published, on rank 0."""
        self._heard: dict[str, float] = {}
        self._busy = 0.0  # seconds in which there were other requests alone than those ahead
        self.continued = 0
        """Responses, so far, that one request began and another one went on with; on rank 0."""

    @property
    def idle_seconds(self) -> float:
        """Total time without any request since the first one ahead of training, seconds; on rank 0."""
        return self.ahead.idle_seconds - self._busy

    def answer(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | None = None,
        penalties: Penalties = NO_PENALTIES,
        *,
        masks: bool = True,
        ended: Ended = nobody,
    ) -> Responses:
        """The responses to all prompts, in their order; see `stream`."""
        (responses,) = self.stream(prompts, None, sampling, penalties, masks=masks, ended=ended)
        return responses

    def stream(
        self,
        prompts: Sequence[Prompt],
        size: int | None,
        sampling: Sampling | None = None,
        penalties: Penalties = NO_PENALTIES,
        *,
        masks: bool = True,
        ended: Ended = nobody,
    ) -> Iterator[Responses]:
        """The responses to all prompts, those to `size` prompts at a time as they come, a short rest with the last; all
        at once for None. `sampling` says how many to each and at which temperature; the job's unless given. `masks`:
        with their sampling masks, where training replays them. `ended` is called with each response at its end, on the
        thread of the requests.

        On rank 0; on the others as many empty batches. Prompts of a generator that fails go to the others; when none
        is left they wait for a replacement, which gets the policy's weights. After a first batch these may have moved
        on from the version that the prompts were asked with: then the stream ends with what there is, and names the
        other prompts `unanswered`. Requests under way are cancelled when this is left before its end.

        Raises:
            Unavailable: generators come, and fail at every prompt.
            Stopped: the run is to stop, on every rank.
        """
        weights, ranks = self.weights, self._ctx.ranks
        if ranks.agree(weights.someone_is_new):
            weights.publish(weights.current)
        batches = (
            iter(())
            if self._client is None
            else self._batches(self.fresh(prompts, sampling, penalties, masks=masks, ended=ended), size)
        )
        while True:
            found: Responses | None = None

            def following() -> str:
                nonlocal found
                try:
                    found = next(batches)
                except StopIteration:
                    return "end"
                except Stopped:
                    return "stop"
                return "publish" if found is None else "responses"

            match ranks.say(following):
                case "end":
                    return
                case "stop":
                    raise Stopped("stopped while the generators were at work")
                case "publish":
                    weights.publish(weights.current)
                case _:
                    yield found or Responses()

    def fresh(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling | None = None,
        penalties: Penalties = NO_PENALTIES,
        *,
        masks: bool = True,
        ended: Ended = nobody,
    ) -> list[PartialRollout]:
        """Prompts without any response yet."""
        found = sampling or self._ctx.spec.sampling
        asked = found.answers_per_prompt, found.temperature, penalties
        return [PartialRollout.begin(prompt, *asked, masks=masks, ended=ended) for prompt in prompts]

    def _batches(self, works: Sequence[PartialRollout], size: int | None) -> Iterator[Responses | None]:
        """The next batches, on rank 0. None if no generator is left: weights must be published before the next
        batch."""
        places = {work.prompt.id: place for place, work in enumerate(works)}
        batches = 1 if size is None else max(1, len(works) // size)
        requests = Requests(self._start, self.weights.left_out, self._ctx.stop)
        requests.waiting = longest_first(works)
        answered, taken, idle = requests.answered, 0, self.ahead.idle_seconds
        requests.begin()
        try:
            while True:
                last = size is None or taken >= size * (batches - 1)
                goal = len(works) + 1 if size is None or last else taken + size
                if requests.until(lambda goal=goal: len(answered) >= goal):  # type: ignore[misc]
                    yield Responses(rollouts(_in_order(list(answered.values())[taken:goal], places)))
                    taken = goal
                elif requests.waiting and not taken:
                    yield None
                    requests.begin()
                else:
                    break
        finally:
            requests.cancel()
            self._busy += self.ahead.idle_seconds - idle
        rest = _in_order(list(answered.values())[taken:], places)
        unanswered = [work.prompt.id for work in requests.waiting]
        if unanswered:
            log.warning(
                "no generator is left in this step; %d prompts are deferred to the next step", len(unanswered)
            )
        yield Responses(rollouts(rest), requests.requeued, requests.refused, unanswered)

    def _start(
        self,
        works: Sequence[PartialRollout],
        arrived: Callable[[PartialRollout], None],
        switches: Switches,
        under_way: Sequence[UnderWay[PartialRollout, PartialRollout]] = (),
    ) -> "Future[Round]":
        assert self._ctx.services is not None
        assert self._client is not None
        role = self._ctx.spec.generator
        started = start_round(
            self._ctx.services.http,
            self._client,
            works,
            self.weights.holders,
            current=self._present,
            limits=Limits(role.concurrent_requests, role.timeout_seconds),
            observer=Observer(
                left=lambda count: self._ctx.report(queue=count), asked=self._count_continued, arrived=arrived
            ),
            switches=switches,
            heard=self._heard,
            under_way=under_way,
        )
        faults.point(f"generating:{len(works)}")
        return started

    def _count_continued(self, work: PartialRollout) -> None:
        self.continued += sum(bool(work.responses[index].tokens) for index in work.unfinished)

    def _present(self) -> dict[str, Member]:
        assert self._ctx.services is not None
        return self._ctx.services.control.present(Role.GENERATOR)


def _in_order(works: Sequence[PartialRollout], places: Mapping[str, int]) -> list[PartialRollout]:
    """Works in the order of their prompts."""
    return sorted(works, key=lambda work: places[work.prompt.id])
