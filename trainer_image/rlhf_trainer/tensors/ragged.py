"""Packed arrays [A] (N responses end to end, with int64 `lengths` [N]) to padded ones [N, T] and back.

`lengths` are on the CPU, wherever the array is: nothing but `pad` makes the host wait for a GPU.
"""

import torch
from torch import Tensor

from .packed import to_device


def check_lengths(x: Tensor, lengths: Tensor) -> None:
    """Raises ValueError unless `x` [A] holds N >= 0 responses of `lengths` [N] tokens, each at least one."""
    if len(lengths) and int(lengths.min()) < 1:
        raise ValueError(f"every response needs at least one token; got lengths {lengths.tolist()}")
    if x.ndim != 1 or len(x) != int(lengths.sum()):
        tokens = int(lengths.sum())
        raise ValueError(
            f"an array of shape {tuple(x.shape)} cannot hold {len(lengths)} responses of {tokens} tokens in "
            "all: pass one value for each response token, none for prompt tokens"
        )


def response_mask(lengths: Tensor) -> Tensor:
    """True where padded [N, T] holds a response token, T = the longest response: bool [N, T]."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def pad(x: Tensor, lengths: Tensor) -> Tensor:
    """Packed [A] -> padded [N, T] in the dtype of `x`, zeros on the right of each response.

    `padded[response_mask(lengths)]` is the inverse. Raises ValueError where `x` and `lengths` disagree.
    """
    check_lengths(x, lengths)
    mask = response_mask(lengths)
    padded = x.new_zeros(mask.shape)
    padded[mask] = x
    return padded


def check_mask(mask: Tensor, lengths: Tensor) -> None:
    """Raises ValueError unless `mask` is bool [A], one value for each token of `lengths` [N]."""
    if mask.dtype != torch.bool:
        raise ValueError(f"a mask of tokens must be bool; got {mask.dtype}")
    check_lengths(mask, lengths)


def sequence_sums(x: Tensor, lengths: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum over each sequence's tokens, only those in `mask` if given; differentiable in `x`.

    Accumulated in float64, token by token, so that a sequence's sum is bitwise the same in any batch.
    Shapes: `x` float [A], `lengths` int64 [N], `mask` bool [A] -> [N] in the unit and dtype of `x`. Raises ValueError
    where they do not fit.
    """
    check_lengths(x, lengths)
    if mask is not None:
        check_mask(mask, lengths)
        x = x.masked_fill(~mask, 0.0)
    # unsafe: lengths are checked above, and segment_reduce's own check fails for zero sequences.
    lengths = to_device(lengths, x.device)
    return torch.segment_reduce(x.double(), "sum", lengths=lengths, unsafe=True).to(x.dtype)


def to_tokens(x: Tensor, lengths: Tensor) -> Tensor:
    """Broadcasts each sequence's value to its tokens, such as a response's advantage.

    Shapes: `x` [N], `lengths` int64 [N] -> [A] in the unit and dtype of `x`. Raises ValueError where they do not fit.
    """
    if x.shape != lengths.shape:
        raise ValueError(
            f"{len(lengths)} sequences need as many values, not an array of shape {tuple(x.shape)}"
        )
    return x[to_device(torch.arange(len(lengths)).repeat_interleave(lengths), x.device)]
