"""Sampling mask of top-k and top-p: the tokens that each response token was sampled from, replayed in training."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from .packed import ragged_index

WHOLE = -1
"""Count of a token without a mask, sampled from the whole vocabulary."""
LEFT_OUT = -1e30
"""Logit of a token outside the mask: its probability is exactly 0, and p log p is finite."""
ROUNDING = 1e-5
"""Tolerance within which kept probabilities sum to 1; also of the sum's logarithm."""


def filled(counts: "array[int]", length: int) -> "array[int]":
    """Counts of a sampling mask, extended to `length` tokens with WHOLE."""
    return counts + array("i", [WHOLE]) * (length - len(counts))


@dataclass(frozen=True)
class Kept:
    """Sampling mask of A response tokens: the other tokens that top-k and top-p kept when each one was sampled. Packed:
    int32 `tokens` [sum of the counts], and int32 `counts` [A], `WHOLE` for a token without a mask."""

    counts: Tensor
    tokens: Tensor

    @classmethod
    def none(cls, count: int) -> Self:
        """The mask of `count` tokens without one."""
        return cls(torch.full((count,), WHOLE, dtype=torch.int32), torch.zeros(0, dtype=torch.int32))

    @classmethod
    def checked(cls, counts: Tensor, tokens: Tensor, responses: int) -> Self:
        """A mask of `responses` response tokens, from untrusted arrays. Raises ValueError if they are invalid."""
        flat = all(each.dtype == torch.int32 and each.ndim == 1 for each in (counts, tokens))
        if flat and len(counts) == responses and not ((counts < WHOLE).any() or (tokens < 0).any()):
            mask = cls(counts, tokens)
            if int(mask.sizes.sum()) == len(tokens):
                return mask
        raise ValueError(
            f"a sampling mask is two int32 arrays, counts of the {responses} response tokens and as many token ids as "
            f"they add up to; got {counts.dtype} {list(counts.shape)} and {tokens.dtype} {list(tokens.shape)}"
        )

    @cached_property
    def sizes(self) -> Tensor:
        """Number of entries of each token in `tokens`: int64 [A]."""
        return self.counts.long().clamp(min=0)

    @cached_property
    def starts(self) -> Tensor:
        """Start of each token's entries in `tokens`: int64 [A]."""
        return self.sizes.cumsum(0) - self.sizes

    def select(self, index: Tensor) -> "Kept":
        """The mask of the tokens `index` (int64 [n]), in that order."""
        return Kept(self.counts[index], self.tokens[ragged_index(self.starts[index], self.sizes[index])])

    @classmethod
    def join(cls, parts: Sequence["Kept"]) -> Self:
        """Concatenates the masks of all parts."""
        return cls(torch.cat([part.counts for part in parts]), torch.cat([part.tokens for part in parts]))

    def with_own(self, own: Tensor) -> Tensor:
        """Each token (`own`, int64 [A]) and its kept tokens, padded with the token itself: int64 [A, K], K >= 1; rows
        of WHOLE for tokens without a mask."""
        table = own[:, None].repeat(1, 1 + int(self.sizes.max() if len(own) else 0))
        rows = torch.repeat_interleave(torch.arange(len(own)), self.sizes)
        table[rows, ragged_index(torch.ones_like(self.sizes), self.sizes)] = self.tokens.long()
        table[self.counts == WHOLE] = WHOLE
        return table
