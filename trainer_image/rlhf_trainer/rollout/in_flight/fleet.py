"""The generators as rank 0 asks them: rounds of prompts, sent to those that hold the policy's weights."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role

from ...data.sampling_request import SamplingRequest
from ...dispatch.assignments import Limits
from ...dispatch.dispatch import Observer, Switches
from ...dispatch.outcomes import UnderWay
from ...process import faults
from ...ranks.context import TrainerContext
from ...tensors.records import Prompt
from ...weights.publisher import Publisher
from ..clients.engine_client import EngineClient
from ..partial_rollout import Ended, PartialRollout, nobody
from .rounds import Round, start_round


class Fleet:
    """Starts rounds. Prompts of a generator that dies are sent to another one."""

    def __init__(self, ctx: TrainerContext, client: EngineClient | None, weights: Publisher) -> None:
        """`client` on rank 0 only."""
        self._ctx, self._client, self._weights = ctx, client, weights
        self._last_signs: dict[str, float] = {}
        self.continued = 0
        """Responses, so far, that one request began and another one went on with; on rank 0."""

    def fresh(
        self,
        prompts: Sequence[Prompt],
        request: SamplingRequest | None = None,
        *,
        ended: Ended = nobody,
    ) -> list[PartialRollout]:
        """Prompts without any response yet, but for given ones."""
        used = request or SamplingRequest(self._ctx.spec.sampling)
        settings = used.sampling.responses_per_prompt, used.sampling.temperature, used.penalties
        version = self._weights.version
        return [
            PartialRollout.begin(prompt, *settings, masks=used.masks, ended=ended, version=version)
            for prompt in prompts
        ]

    def start(
        self,
        works: Sequence[PartialRollout],
        arrived: Callable[[PartialRollout], None],
        switches: Switches,
        under_way: Sequence[UnderWay[PartialRollout, PartialRollout]] = (),
    ) -> "Future[Round]":
        """Asks the generators that hold weights now for the works' responses; see `requests.Start`."""
        assert self._ctx.services is not None
        assert self._client is not None
        role = self._ctx.spec.generator
        for work in works:
            work.closing = lambda: switches.closing and not switches.keep
        started = start_round(
            self._ctx.services.http,
            self._client,
            works,
            self._weights.holders,
            current=self._present,
            limits=Limits(role.concurrent_requests, role.timeout_seconds),
            observer=Observer(
                left=lambda count: self._ctx.report(queue=count),
                assigned=self._count_continued,
                arrived=arrived,
            ),
            switches=switches,
            last_progress=self._last_signs,
            under_way=under_way,
        )
        faults.point(f"generating:{len(works)}")
        return started

    def _count_continued(self, work: PartialRollout) -> None:
        self.continued += sum(bool(work.responses[index].tokens) for index in work.unfinished)

    def _present(self) -> dict[str, Member]:
        assert self._ctx.services is not None
        return self._ctx.services.control.present(Role.GENERATOR)
