"""Responses of the policy, whoever samples them."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from ..data.sampling_request import SamplingRequest
from ..tensors.records import Prompt
from .in_flight.requests import Responses
from .partial_rollout import Ended, nobody

Issue = Callable[[], list[Prompt]]
"""Returns the prompts of one step."""


class Rollouts:
    """Samples responses, and has the policy's weight version. Its methods are collectives.

    Without more, as where the trainer generates itself: nothing is published, and no response is older than the policy.
    """

    is_ahead = False
    """True if episodes are requested ahead of training."""

    def __init__(self) -> None:
        self.version = 0
        """The policy's weight version."""

    @property
    def is_stale(self) -> bool:
        """True if new responses are sampled by earlier weights than the policy's."""
        return False

    def advance(self, version: int, issue: Issue, *, collected: bool) -> dict[str, float]:  # noqa: ARG002
        """The policy has a new version, which is published every `weights.everySteps` versions, and the first; returns
        metrics of that. `issue` and `collected` as in `publish`."""
        self.version = version
        return {}

    def publish(self, issue: Issue, *, collected: bool) -> None:
        """Publishes the policy's weights, with which requests go on, and requests further episodes if that is done
        ahead: `issue` returns the prompts of one. `collected`: the next step has its episode already."""

    def yield_gpus(self) -> None:
        """Has generators that take turns with the trainer give up its GPUs, until they are needed again."""

    def find_other_weights(self) -> str:
        """Names of generators whose served weights differ from what was sent, with those weights; '' if none."""
        return ""

    def answer(
        self,
        prompts: list[Prompt],
        request: SamplingRequest,
        ended: Ended = nobody,
        *,
        enough: int | None = None,
    ) -> Responses:
        """The responses to the prompts, in their order; see `stream`."""
        raise NotImplementedError

    def stream(
        self,
        prompts: Sequence[Prompt],
        size: int | None,
        *,
        ended: Ended = nobody,
        enough: int | None = None,
    ) -> Iterator[Responses]:
        """The responses to all prompts, or to those `enough` whose responses are complete first; those to `size`
        prompts at a time as they come. Only with generators."""
        raise NotImplementedError

    def episode(self) -> Responses:
        """The responses of the oldest episode that was requested ahead."""
        raise NotImplementedError

    def put_back(self) -> None:
        """Returns the last taken episode, which is not trained on now, to the front."""

    def figures(self) -> dict[str, float]:
        """Metrics of the requests since the last call, on rank 0."""
        return {}

    def blobs(self) -> Mapping[str, Callable[[], bytes]]:
        """Encoders of what a snapshot has of responses without an episode; on rank 0."""
        return {}

    def restore(self, data: bytes | None) -> None:
        """Inverse of `blobs`. Raises ValueError for invalid data."""
