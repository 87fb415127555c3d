"""Column of the reference's K most probable tokens at each response token's place, [A, 2 K]: K log-probabilities, then
the K ids, which float32 holds exactly below 2^24. A log-probability of LEFT_OUT is of no token."""

import torch
from torch import Tensor

from .sampling_mask import LEFT_OUT

_ROUNDING = 1e-3
"""How far above 0 rounding may take a log-probability."""


def top_logprobs_of(top: Tensor) -> Tensor:
    """The log-probabilities: float32 [A, K]."""
    return top[:, : top.shape[1] // 2]


def top_ids(top: Tensor) -> Tensor:
    """The token ids: int64 [A, K]."""
    return top[:, top.shape[1] // 2 :].long()


def is_valid(top: Tensor) -> bool:
    """True if the numbers are log-probabilities, up to rounding, and ids."""
    logprobs, ids = top_logprobs_of(top), top[:, top.shape[1] // 2 :]
    return bool(((ids >= 0) & (ids == ids.floor())).all()) and bool((logprobs < _ROUNDING).all())


def known_tokens(top: Tensor, vocabulary: int) -> Tensor:
    """The column without tokens from id `vocabulary` on, which the policy does not have."""
    half = top.shape[1] // 2
    logprobs, ids = top[:, :half], top[:, half:]
    absent = (ids >= vocabulary) | (logprobs <= LEFT_OUT / 2)
    return torch.cat([logprobs.masked_fill(absent, LEFT_OUT), ids.masked_fill(absent, 0)], dim=-1)
