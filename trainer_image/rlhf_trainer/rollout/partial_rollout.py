"""A prompt with its responses so far, which one generator may begin and another continue."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from rlhf_api.sections.evaluation import NO_PENALTIES, Penalties

from ..environments.environments import Next
from ..tensors.expert_rows import ExpertRows
from ..tensors.records import Given, Outcome, Prompt, Rollout
from ..tensors.sampling_mask import filled

ENDS = ("stop", "length")
"""Finish reasons of a complete response: end token or stop string, or the length limit."""


@dataclass
class Response:
    """Tokens of one response so far, with each one's log-probability in nats and weight version: int32, float32 and
    int32 arrays, since a step may have tens of millions of tokens. A response of several turns has context tokens
    between them, those of the environment's replies, and one whose thought was closed has those of the closing."""

    tokens: "array[int]" = field(default_factory=lambda: array("i"))
    logprobs: "array[float]" = field(default_factory=lambda: array("f"))
    versions: "array[int]" = field(default_factory=lambda: array("i"))
    end: str | None = None
    """One of ENDS once the response is complete."""
    kept_counts: "array[int]" = field(default_factory=lambda: array("i"))
    kept: "array[int]" = field(default_factory=lambda: array("i"))
    """Sampling mask, as in `Rollout`."""
    sampled: "array[int]" = field(default_factory=lambda: array("b"))
    outcome: Outcome | None = None
    branches: "array[int]" = field(default_factory=lambda: array("i"))
    """All three as in `Rollout`; `outcome` once the episode has ended."""
    experts: ExpertRows = field(default_factory=ExpertRows)
    """As in `Rollout`: of all tokens but the last, which no router has seen yet, where they are asked for."""

    def add(
        self,
        tokens: "array[int]",
        logprobs: "array[float]",
        version: int,
        counts: "array[int] | None" = None,
        kept_tokens: "array[int] | None" = None,
        experts: Iterable[np.ndarray] = (),
    ) -> None:
        """Appends tokens sampled by weight version `version`, with their log-probabilities and, if there is one, their
        sampling mask; and rows of the `experts` of the tokens before them that have none."""
        self.experts.add(experts)
        if counts and kept_tokens is not None:
            self.kept_counts += filled(array("i"), len(self.tokens) - len(self.kept_counts)) + counts
            self.kept += kept_tokens
        if self.sampled:
            self.sampled += array("b", [1]) * len(tokens)
        self.tokens += tokens
        self.logprobs += logprobs
        self.versions += array("i", [version]) * len(tokens)

    def add_context(self, tokens: "array[int]", *, branch: bool = False) -> None:
        """Appends tokens that an environment replied with, or the prompt of a `branch`: of log-probability 0 and the
        version of the token before. Raises ValueError where none was sampled before: such tokens belong to the
        prompt."""
        if not self.tokens:
            raise ValueError(
                "a response begins with a sampled token; what comes before belongs to its prompt"
            )
        if branch:
            self.branches.append(len(self.tokens))
        self.sampled += array("b", [1]) * (len(self.tokens) - len(self.sampled)) + array("b", [0]) * len(
            tokens
        )
        self.tokens += tokens
        self.logprobs += array("f", [0.0]) * len(tokens)
        self.versions += self.versions[-1:] * len(tokens)

    def before(self, prompt: Prompt) -> tuple[int, ...]:
        """All tokens that the next one follows: those of the prompt and of the response, or of its last branch."""
        if self.branches:
            return tuple(self.tokens[self.branches[-1] :])
        return (*prompt.tokens, *self.tokens)

    @property
    def turn_start(self) -> int:
        """Number of tokens before the present turn, which are none of a response of one turn."""
        return self.sampled.tobytes().rfind(b"\0") + 1

    def cut(self, length: int) -> None:
        """Removes the tokens after the first `length` ones."""
        self.experts.cut(len(self.tokens) - length if length else len(self.experts))
        del self.kept[sum(count for count in self.kept_counts[:length] if count > 0) :]
        for each in (self.tokens, self.logprobs, self.versions, self.sampled, self.kept_counts):
            del each[length:]

    def finish(self, reason: str) -> None:
        """Marks the response as complete. Raises ValueError for a reason not in ENDS, and for a response without
        tokens.
        """
        if reason not in ENDS:
            raise ValueError(f"a response was not finished: {reason!r}")
        if not self.tokens:
            raise ValueError("a response has no tokens")
        self.end = reason

    def copy(self) -> "Response":
        own = self.tokens[:], self.logprobs[:], self.versions[:], self.end
        return Response(
            *(*own, self.kept_counts[:], self.kept[:], self.sampled[:], self.outcome, self.branches[:]),
            self.experts.copy(),
        )


def given_response(given: Given, version: int) -> Response:
    """The complete response that the dataset gives: of log-probability 0, since nobody sampled it, and of the present
    weight version."""
    count, mask = len(given.tokens), given.mask
    return Response(
        array("i", given.tokens),
        array("f", [0.0]) * count,
        array("i", [version]) * count,
        "stop" if given.finished else "length",
        sampled=array("b") if all(mask) else array("b", mask),
    )


Ended = Callable[[Prompt, Response], None]


def nobody(_prompt: Prompt, _response: Response) -> None:
    """`ended` of responses that nobody waits for one by one."""


def never() -> bool:
    """`closing` of responses whose round is not closed."""
    return False


@dataclass
class PartialRollout:
    """The responses to one prompt. One request at a time extends them, on the event loop's thread."""

    prompt: Prompt
    responses: list[Response]
    temperature: float | None = None
    """Sampling temperature; 0 is greedy; None: the job's."""

    penalties: Penalties = NO_PENALTIES
    masks: bool = True
    """True if tokens come with their sampling masks, where training replays them."""
    ended: Ended = nobody
    """Called with the prompt and each of its responses when that has ended."""
    most: int | None = None
    """Most tokens of a response, all turns and replies; None: as many as one turn has."""
    closing: Callable[[], bool] = never
    """True once its round is closed: then no response begins another turn, or goes on after its thought's budget."""

    @classmethod
    def begin(
        cls,
        prompt: Prompt,
        responses: int,
        temperature: float | None = None,
        penalties: Penalties = NO_PENALTIES,
        *,
        masks: bool = True,
        ended: Ended = nobody,
        version: int = 0,
    ) -> "PartialRollout":
        """Without any token yet; complete where the dataset gives the response, of weight `version`."""
        begun = [Response() for _ in range(responses)]
        if prompt.given is not None:
            begun = [given_response(prompt.given, version)]
        return cls(prompt, begun, temperature, penalties, masks, ended)

    @property
    def begun(self) -> bool:
        return any(response.tokens for response in self.responses)

    @property
    def is_complete(self) -> bool:
        return all(response.end for response in self.responses)

    @property
    def unfinished(self) -> list[int]:
        """Indices of the unfinished responses."""
        return [i for i, response in enumerate(self.responses) if response.end is None]

    def turn_end(self, response: Response, longest: int) -> int:
        """Most tokens that a response has at the end of its present turn, which has `longest` of its own at most."""
        end = response.turn_start + longest
        return end if self.most is None else min(end, self.most)

    def begin_anew(self) -> None:
        """Puts responses without any token in the place of all, as where the prompt opens another episode."""
        self.responses[:] = [Response() for _ in self.responses]

    def go_on(self, index: int, following: Next) -> None:
        """Applies what an environment replied to the last turn of a response."""
        response = self.responses[index]
        if following.anew:
            self.responses[index] = Response()
        elif following.end is None:
            response.add_context(following.context, branch=following.branch)
        else:
            response.outcome = following.outcome
            response.finish(following.end)
            self.ended(self.prompt, response)

    def frozen(self) -> "PartialRollout":
        """A copy that later tokens do not change."""
        return replace(self, responses=[r if r.end else r.copy() for r in self.responses])

    def rollouts(self) -> list[Rollout]:
        """Rollouts of the finished responses."""
        return [
            Rollout(
                self.prompt,
                r.tokens,
                r.logprobs,
                r.versions,
                r.end == "stop",
                r.kept_counts,
                r.kept,
                r.sampled,
                r.outcome,
                r.branches,
                r.experts,
            )
            for r in self.responses
        ]


def rollouts(works: Iterable[PartialRollout]) -> list[Rollout]:
    """Rollouts of the works' finished responses, in order."""
    return [rollout for work in works for rollout in work.rollouts()]


def longest_first(works: Iterable[PartialRollout]) -> list[PartialRollout]:
    """The works by the length of their prompts, which is all that is known of the length of a response: where responses
    grow with their prompts, no long one is begun last and keeps a generator busy alone."""
    return sorted(works, key=lambda work: len(work.prompt.tokens), reverse=True)
