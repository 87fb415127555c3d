"""A prompt with what has come of its responses: begun by one generator, continued by another where that one stops."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..records import Prompt, Rollout

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

    def add(self, tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Tokens that weight version `version` sampled. Raises ValueError where log-probabilities are missing, or a
        token cannot be one."""
        if len(tokens) != len(logprobs):
            raise ValueError(f"{len(tokens)} tokens came with {len(logprobs)} log-probabilities")
        try:
            new, theirs = array("i", tokens), array("f", logprobs)
        except OverflowError as error:
            raise ValueError(f"no token has such a number: {error}") from None
        self.tokens += new
        self.logprobs += theirs
        self.versions += array("i", [version]) * len(new)

    def finish(self, reason: str) -> None:
        """Raises ValueError for any reason but ENDS, and for a response without tokens."""
        if reason not in ENDS:
            raise ValueError(f"a response was not finished: {reason!r}")
        if not self.tokens:
            raise ValueError("a response has no tokens")
        self.end = reason


@dataclass
class Work:
    """The responses to one prompt. One request at a time adds to them, on the thread of the requests."""

    prompt: Prompt
    responses: list[Response]
    temperature: float | None = None
    """Of sampling, 0 for the likeliest token each time; that of the job unless given."""

    @classmethod
    def begin(cls, prompt: Prompt, responses: int, temperature: float | None = None) -> "Work":
        return cls(prompt, [Response() for _ in range(responses)], temperature)

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

    def rollouts(self) -> list[Rollout]:
        """Of responses that are whole."""
        return [
            Rollout(self.prompt, r.tokens, r.logprobs, r.versions, r.end == "stop") for r in self.responses
        ]


def rollouts(works: Iterable[Work]) -> list[Rollout]:
    """Of works that are whole, in their order."""
    return [rollout for work in works for rollout in work.rollouts()]
