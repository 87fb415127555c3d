"""Packed arrays [A] (N answers end to end beside int64 `lengths` [N]) to padded ones [N, T] and back."""

import torch
from torch import Tensor


def check_lengths(x: Tensor, lengths: Tensor) -> None:
    """Raises ValueError unless `x` [A] is N >= 0 answers of `lengths` [N] tokens, each at least one."""
    if len(lengths) and int(lengths.min()) < 1:
        raise ValueError(f"every answer has at least one token; the lengths are {lengths.tolist()}")
    if x.ndim != 1 or len(x) != int(lengths.sum()):
        tokens = int(lengths.sum())
        raise ValueError(
            f"an array of shape {tuple(x.shape)} cannot hold {len(lengths)} answers of {tokens} tokens in "
            "all: pass one value for each answer token, none for prompt tokens"
        )


def response_mask(lengths: Tensor) -> Tensor:
    """True where padded [N, T] holds an answer token, T = the longest answer: bool [N, T]."""
    longest = int(lengths.max()) if len(lengths) else 0
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def pad(x: Tensor, lengths: Tensor) -> Tensor:
    """Packed [A] -> padded [N, T] in the dtype of `x`, zeros on the right of each answer.

    `padded[response_mask(lengths)]` is the way back. Raises ValueError where `x` and `lengths` disagree.
    """
    check_lengths(x, lengths)
    mask = response_mask(lengths)
    padded = x.new_zeros(mask.shape)
    padded[mask] = x
    return padded
