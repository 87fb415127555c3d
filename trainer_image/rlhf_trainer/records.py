"""What flows through a training step: Prompt -> Rollout -> Experience.

All arrays are packed: the values of N sequences lie end to end in one dimension, without padding, beside their
lengths. "response-aligned" arrays hold one value for each answer token and nothing for prompt tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prompt:
    """One prompt of the dataset: `id` is unique within a run (`<epoch>/<row>`), `tokens` its P token ids, `row`
    the dataset's row, which reward functions receive."""

    id: str
    tokens: tuple[int, ...]
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Rollout:
    """One answer to a prompt, R >= 1 tokens: the sampled `tokens`, the log-probability in nats that the sampler
    gave each of them, and the weight version that sampled each. `finished` is false where the length limit cut
    the answer off."""

    prompt: Prompt
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finished: bool


def ragged_index(starts: Tensor, lengths: Tensor) -> Tensor:
    """Positions `starts[i], starts[i] + 1, ... starts[i] + lengths[i] - 1` of every i, end to end.

    Shapes: two int64 [N] -> int64 [sum(lengths)].
    """
    ends = lengths.cumsum(0)
    first = torch.repeat_interleave(starts - (ends - lengths), lengths)
    return first + torch.arange(int(ends[-1]) if len(ends) else 0)


@dataclass(frozen=True)
class Sequences:
    """N prompts with their answers, packed: int64 `tokens` [sum(lengths)], `lengths` [N], `prompt_lengths` [N].

    Every sequence has at least one prompt token and one answer token.
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor

    @classmethod
    def pack(cls, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Self:
        """From (prompt tokens, answer tokens) pairs."""
        return cls(
            tokens=torch.tensor(
                [t for prompt, answer in pairs for t in (*prompt, *answer)], dtype=torch.int64
            ),
            lengths=torch.tensor([len(p) + len(a) for p, a in pairs], dtype=torch.int64),
            prompt_lengths=torch.tensor([len(p) for p, _ in pairs], dtype=torch.int64),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        """Where each sequence begins in `tokens`: int64 [N]."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def response_lengths(self) -> Tensor:
        """Answer tokens of each sequence: int64 [N]."""
        return self.lengths - self.prompt_lengths

    @cached_property
    def response_starts(self) -> Tensor:
        """Where each sequence's answer begins in an response-aligned array: int64 [N]."""
        return self.response_lengths.cumsum(0) - self.response_lengths

    def row(self, i: int) -> Tensor:
        """The tokens of sequence i: int64 [lengths[i]]."""
        return self.tokens[self.starts[i] : self.starts[i] + self.lengths[i]]

    def response_index(self, rows: Tensor) -> Tensor:
        """Where the answers of `rows` (int64 [n]) lie in an response-aligned array, end to end in that order."""
        return ragged_index(self.response_starts[rows], self.response_lengths[rows])

    def select(self, rows: Tensor) -> "Sequences":
        """The sequences `rows` (int64 [n]), in that order."""
        index = ragged_index(self.starts[rows], self.lengths[rows])
        return Sequences(self.tokens[index], self.lengths[rows], self.prompt_lengths[rows])

    @classmethod
    def join(cls, parts: Sequence["Sequences"]) -> Self:
        """The sequences of all parts, one after the other."""
        return cls(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(cls)})


@dataclass(frozen=True)
class Experience:
    """What PPO trains on: N sequences with response-aligned float32 arrays [A], A = sum of the answer lengths.

    `sampled_logprobs` come from the generator, `logprobs` (the "old" policy), `reference_logprobs` and `values`
    from trainer and reference at the weights that sampled; all in nats. `advantages` and `returns` are in units
    of reward. `scores` [N] is the sequence reward; `versions` int64 [A] the weight version that sampled each token.
    """

    sequences: Sequences
    sampled_logprobs: Tensor
    logprobs: Tensor
    reference_logprobs: Tensor
    values: Tensor
    advantages: Tensor
    returns: Tensor
    versions: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.sequences)

    def select(self, rows: Tensor) -> Self:
        """The experience of the sequences `rows` (int64 [n]), in that order."""
        index = self.sequences.response_index(rows)
        picked = {
            f.name: getattr(self, f.name)[index]
            for f in fields(self)
            if f.name not in ("sequences", "scores")
        }
        return replace(self, sequences=self.sequences.select(rows), scores=self.scores[rows], **picked)

    @classmethod
    def join(cls, parts: Sequence["Experience"]) -> Self:
        """The experience of all parts, one after the other."""
        own = [f.name for f in fields(cls) if f.name != "sequences"]
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in own}
        return cls(sequences=Sequences.join([part.sequences for part in parts]), **joined)
