"""Records of a training step: Prompt -> Rollout -> Sequences.

All arrays are packed: the values of N sequences lie end to end in one dimension, without padding, beside their lengths.
"response-aligned" arrays hold one value for each response token that was sampled, and nothing for prompt tokens and
context tokens, those of an environment's replies between the turns of an episode. So all that trains and measures is of
tokens that the policy chose, and what follows a turn's last token is the next turn's first one.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from .expert_rows import UNKNOWN, ExpertRows
from .images import Images, Picture
from .packed import flat_ints, ragged_index
from .sampling_mask import Kept


@dataclass(frozen=True)
class Prompt:
    """One prompt of the dataset: `id` is unique within a run (`<epoch>/<row>`), `tokens` its P token ids, `row`
    the dataset's row, which reward functions receive."""

    id: str
    tokens: tuple[int, ...]
    row: Mapping[str, Any]
    cut: int = 0
    """Number of prompt tokens that were cut to fit."""
    given: "Given | None" = None
    """The response, where the dataset gives it."""
    pictures: tuple[Picture, ...] = ()
    """Its images, whose tokens are among its own."""


@dataclass(frozen=True)
class Given:
    """A response of the dataset: token ids, which of them are trained on, and whether all of it is there."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    finished: bool


@dataclass(frozen=True)
class Outcome:
    """End of an episode of `turns` turns: `reward`, the sum of its rewards, and `turn_rewards`, those of turns: the
    index in the response of the last token that was sampled in the turn, and the reward. `problem`: the reason why the
    episode has no reward, which is not the policy's fault; else ''."""

    reward: float
    turns: int
    turn_rewards: tuple[tuple[int, float], ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Rollout:
    """One response to a prompt, R >= 1 tokens: the `tokens`, the log-probability in nats that the sampler gave each of
    them, and the weight version that sampled each, as int32, float32 and int32 arrays. `finished` is false where the
    length limit cut the response off. `kept`: the other tokens that each one was sampled from, end to end, and
    `kept_counts`, how many: int32 arrays, empty where no sampling mask is replayed. `sampled`: int8 array, 1 for each
    token that was sampled, 0 for a context token; empty where all were. `branches`: int32 array, the places in
    `tokens` at which a branch begins, see `Sequences`. `outcome`: of an episode; else None. `experts`: those that a
    mixture's routers chose for the first tokens of prompt and response; without any where none are replayed."""

    prompt: Prompt
    tokens: "array[int]"
    logprobs: "array[float]"
    versions: "array[int]"
    finished: bool
    kept_counts: "array[int]" = field(default_factory=lambda: array("i"))
    kept: "array[int]" = field(default_factory=lambda: array("i"))
    sampled: "array[int]" = field(default_factory=lambda: array("b"))
    outcome: Outcome | None = None
    branches: "array[int]" = field(default_factory=lambda: array("i"))
    experts: ExpertRows = field(default_factory=ExpertRows)

    def of_sampled(self, values: "array[Any]") -> "array[Any]":
        """The values of sampled tokens, of an array with one for each token."""
        return array(values.typecode, compress(values, self.sampled)) if self.sampled else values


@dataclass(frozen=True)
class Sequences:
    """N prompts with what came after them, packed: int64 `tokens` [sum(lengths)], `lengths` [N], `prompt_lengths` [N];
    and `kept`, the sampling mask of the response tokens, None if every token was sampled from the whole vocabulary.
    `finished`, bool [N], as in `Rollout`; None where that does not matter. `sampled`, bool [sum(after_lengths)]: the
    tokens after the prompts that are response tokens, the others being context tokens; None if all are. `branches`,
    bool as `sampled`: context tokens that begin a branch, a prompt of its own with what was sampled after it, where no
    token before it is read; None without any. `images`: of
    the prompts, whose tokens have as many places for each as it needs; None without any. `routing`, int16
    [sum(lengths), L, K]: the experts that are replayed for each token in each layer of a mixture, UNKNOWN for none.

    Every sequence has at least one prompt token and one response token.
    """

    tokens: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    kept: Kept | None = None
    finished: Tensor | None = None
    sampled: Tensor | None = None
    branches: Tensor | None = None
    images: Images | None = None
    routing: Tensor | None = None

    @classmethod
    def pack(cls, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Self:
        """Packs (prompt tokens, response tokens) pairs."""
        return cls(
            tokens=flat_ints(part for pair in pairs for part in pair),
            lengths=torch.tensor([len(p) + len(a) for p, a in pairs], dtype=torch.int64),
            prompt_lengths=torch.tensor([len(p) for p, _ in pairs], dtype=torch.int64),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        """Start of each sequence in `tokens`: int64 [N]."""
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def after_lengths(self) -> Tensor:
        """Number of tokens after each prompt, context tokens among them: int64 [N]."""
        return self.lengths - self.prompt_lengths

    @cached_property
    def after_starts(self) -> Tensor:
        """Start of each sequence in an array of the tokens after the prompts: int64 [N]."""
        return self.after_lengths.cumsum(0) - self.after_lengths

    @cached_property
    def response_lengths(self) -> Tensor:
        """Number of response tokens of each sequence: int64 [N]."""
        if self.sampled is None:
            return self.after_lengths
        before = F.pad(self.sampled.cumsum(0), (1, 0))
        return before[self.after_starts + self.after_lengths] - before[self.after_starts]

    @cached_property
    def response_columns(self) -> Tensor:
        """Place of each response token in its own sequence: int64 [A]."""
        columns = ragged_index(self.prompt_lengths, self.after_lengths)
        return columns if self.sampled is None else columns[self.sampled]

    @cached_property
    def response_starts(self) -> Tensor:
        """Start of each sequence's response in a response-aligned array: int64 [N]."""
        return self.response_lengths.cumsum(0) - self.response_lengths

    def by_branch(self) -> tuple["Sequences", Tensor]:
        """Each branch as a sequence, as models read it, and the tokens before the first one, with the same response
        tokens in the same order; and the sequence here of each: int64 [their number]."""
        owners = torch.arange(len(self))
        if self.branches is None or self.sampled is None:
            return self, owners
        places = ragged_index(self.starts + self.prompt_lengths, self.after_lengths)[self.branches]
        starts, order = torch.cat([self.starts, places]).sort()
        lengths = torch.cat([starts[1:], torch.tensor([len(self.tokens)])]) - starts
        first = torch.ones_like(places)  # of a branch's context, which `sampled` tells from what follows it
        apart = replace(
            self,
            lengths=lengths,
            prompt_lengths=torch.cat([self.prompt_lengths, first])[order],
            finished=None,
            sampled=self.sampled[~self.branches],
            branches=None,
        )
        return apart, torch.bucketize(starts, self.starts, right=True) - 1

    def divided(self, budget: int) -> "Sequences":
        """Sequences whose branches would exceed a budget of tokens, were each padded to the longest, as several with
        some of their branches, in order; with the same response tokens in the same order."""
        if self.branches is None or self.sampled is None:
            return self
        lengths = self.branch_lengths or []
        first = torch.tensor([flag for own in lengths for flag in _divide(own, budget)])
        if int(first.sum()) == len(self):
            return self
        apart, owners = self.by_branch()
        begins = F.pad(owners.diff(), (1, 0), value=1) > 0
        stays = torch.ones_like(self.branches)
        stays[self.branches] = ~first[~begins]
        number = first.cumsum(0) - 1
        return replace(
            self,
            lengths=torch.zeros(int(first.sum()), dtype=torch.int64).index_add(0, number, apart.lengths),
            prompt_lengths=apart.prompt_lengths[first],
            finished=None,
            sampled=self.sampled[stays],
            branches=self.branches[stays],
        )

    @property
    def branch_lengths(self) -> list[list[int]] | None:
        """Lengths of the branches of each sequence, as `by_branch` has them; None without any."""
        if self.branches is None:
            return None
        apart, owners = self.by_branch()
        lengths: list[list[int]] = [[] for _ in range(len(self))]
        for owner, length in zip(owners.tolist(), apart.lengths.tolist(), strict=True):
            lengths[owner].append(length)
        return lengths

    def last_branches(self) -> "Sequences":
        """The last branch of each sequence, all of it where it has none."""
        apart, owners = self.by_branch()
        return apart.select(owners.bincount(minlength=len(self)).cumsum(0) - 1)

    def row(self, i: int) -> Tensor:
        """The tokens of sequence i: int64 [lengths[i]]."""
        return self.tokens[self.starts[i] : self.starts[i] + self.lengths[i]]

    def sampled_of(self, i: int) -> list[bool] | None:
        """Flags of sequence i's tokens after its prompt: response tokens; None if those of all sequences are."""
        return self._after_prompt(self.sampled, i)

    def branches_of(self, i: int) -> list[bool] | None:
        """Flags of the same tokens: the first of a branch; None if no sequence has any."""
        return self._after_prompt(self.branches, i)

    def _after_prompt(self, flags: Tensor | None, i: int) -> list[bool] | None:
        start, length = self.after_starts[i], self.after_lengths[i]
        return None if flags is None else flags[start : start + length].tolist()

    def response_index(self, rows: Tensor) -> Tensor:
        """Indices of the responses of `rows` (int64 [n]) in a response-aligned array, end to end in that order."""
        return ragged_index(self.response_starts[rows], self.response_lengths[rows])

    def after_prompts(self, values: Tensor, fill: float = 0) -> Tensor:
        """A response-aligned array [A] with `fill` at context tokens: [sum(after_lengths)], same dtype."""
        if self.sampled is None:
            return values
        whole = torch.full(self.sampled.shape, fill, dtype=values.dtype)
        whole[self.sampled] = values
        return whole

    def select(self, rows: Tensor) -> "Sequences":
        """The sequences `rows` (int64 [n]), in that order."""
        index = ragged_index(self.starts[rows], self.lengths[rows])
        after = ragged_index(self.after_starts[rows], self.after_lengths[rows])
        return Sequences(
            self.tokens[index],
            self.lengths[rows],
            self.prompt_lengths[rows],
            None if self.kept is None else self.kept.select(self.response_index(rows)),
            None if self.finished is None else self.finished[rows],
            None if self.sampled is None else self.sampled[after],
            None if self.branches is None else self.branches[after],
            None if self.images is None else self.images.select(rows),
            None if self.routing is None else self.routing[index],
        )

    @classmethod
    def join(cls, parts: Sequence["Sequences"]) -> Self:
        """Concatenates the sequences of all parts."""
        masks = [part.kept or Kept.none(int(part.response_lengths.sum())) for part in parts]
        counts = [int(part.after_lengths.sum()) for part in parts]
        sampled = [
            torch.ones(count, dtype=torch.bool) if part.sampled is None else part.sampled
            for part, count in zip(parts, counts, strict=True)
        ]
        branches = [
            torch.zeros(count, dtype=torch.bool) if part.branches is None else part.branches
            for part, count in zip(parts, counts, strict=True)
        ]
        return cls(
            torch.cat([part.tokens for part in parts]),
            torch.cat([part.lengths for part in parts]),
            torch.cat([part.prompt_lengths for part in parts]),
            None if all(part.kept is None for part in parts) else Kept.join(masks),
            sampled=None if all(part.sampled is None for part in parts) else torch.cat(sampled),
            branches=None if all(part.branches is None for part in parts) else torch.cat(branches),
            images=Images.join([(part.images, len(part)) for part in parts]),
            routing=_join_routing(parts),
        )


def _divide(branches: Sequence[int], budget: int) -> list[bool]:
    """Of each branch of a sequence, by their lengths, whether a part begins with it whose padded size is within the
    budget."""
    begins, count, longest = list[bool](), 0, 0
    for length in branches:
        count, longest = count + 1, max(longest, length)
        begins.append(count == 1 or count * longest > budget)
        if begins[-1]:
            count, longest = 1, length
    return begins


def _join_routing(parts: Sequence[Sequences]) -> Tensor | None:
    """`routing` of all parts, UNKNOWN for those without."""
    known = next((part.routing for part in parts if part.routing is not None), None)
    if known is None:
        return None
    free = [known.new_full((len(part.tokens), *known.shape[1:]), UNKNOWN) for part in parts]
    return torch.cat([each if p.routing is None else p.routing for p, each in zip(parts, free, strict=True)])
