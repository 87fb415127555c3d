"""A prompt with what has come of its responses: begun by one generator, continued by another where that one stops."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rlhf_api.evaluation import NO_PENALTIES, Penalties

from ..records import Prompt, Rollout
from ..sampling_mask import filled

ENDS = ("stop", "length")
"""Reasons by which a response is whole: an end token, or the limit."""


@dataclass
class Response:
    """Tokens of one response so far, with the log-probability in nats and the weight version of each: int32, float32
    and int32 arrays, since a step may have tens of millions of them."""

    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    versions: "array[int]" = field(default_factory=lambda: array("i"))
    end: str | None = None
    """One of ENDS once it is whole."""
    kept_counts: "array[int]" = field(default_factory=lambda: array("i"))
    kept: "array[int]" = field(default_factory=lambda: array("i"))
    """The sampling mask, as a `Rollout` has it."""

    def add(
        self,
        tokens: "array[int]",
        logprobs: "array[float]",
        version: int,
        counts: "array[int] | None" = None,
        kept: "array[int] | None" = None,
    ) -> None:
        """Tokens that weight version `version` sampled, with as many log-probabilities, and their sampling mask where
        there is one."""
        if counts and kept is not None:
            self.kept_counts = filled(self.kept_counts, len(self.tokens)) + counts
            self.kept += kept
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += array("i", [version]) * len(tokens)

    def finish(self, reason: str) -> None:
        """Raises ValueError for any reason but ENDS, and for a response without tokens."""
        if reason not in ENDS:
            raise ValueError(f"a response was not finished: {reason!r}")
        if not self.tokens:
            raise ValueError("a response has no tokens")
        self.end = reason

    def copy(self) -> "Response":
        own = self.tokens[:], self.logprobs[:], self.versions[:], self.end
        return Response(*own, self.kept_counts[:], self.kept[:])


@dataclass
class Work:
    """The responses to one prompt. One request at a time adds to them, on the thread of the requests."""

    prompt: Prompt
    responses: list[Response]
    temperature: float | None = None
    """Of sampling, 0 for the likeliest token each time; that of the job unless given."""

    penalties: Penalties = NO_PENALTIES

    @classmethod
    def begin(
        cls,
        prompt: Prompt,
        responses: int,
        temperature: float | None = None,
        penalties: Penalties = NO_PENALTIES,
    ) -> "Work":
        return cls(prompt, [Response() for _ in range(responses)], temperature, penalties)

    @property
    def begun(self) -> bool:
        return any(response.tokens for response in self.responses)

    @property
    def whole(self) -> bool:
        return all(response.end for response in self.responses)

    @property
    def unfinished(self) -> list[int]:
        """Indices of the responses that are to be continued."""
        return [i for i, response in enumerate(self.responses) if response.end is None]

    def frozen(self) -> "Work":
        """As it is now: what is added to responses later is not added to these."""
        return replace(self, responses=[r if r.end else r.copy() for r in self.responses])

    def rollouts(self) -> list[Rollout]:
        """Of responses that are whole."""
        return [
            Rollout(self.prompt, r.tokens, r.logprobs, r.versions, r.end == "stop", r.kept_counts, r.kept)
            for r in self.responses
        ]


def rollouts(works: Iterable[Work]) -> list[Rollout]:
    """Of works that are whole, in their order."""
    return [rollout for work in works for rollout in work.rollouts()]
