"""Covariance of a token's log-probability and advantage: tokens of high covariance make a policy certain early."""

import math

import torch
from torch import Tensor

LOW, HIGH = 1.0, 5.0
"""Covariances between which Clip-Cov draws its tokens."""


def token_covariances(logprobs: Tensor, advantages: Tensor, mask: Tensor | None = None) -> Tensor:
    """(log p - mean log p)(A - mean A) of each token, with means over those in `mask`.

    Shapes: two float [A] in nats and units of the advantages, `mask` bool [A] -> [A] in their product, dtype of
    `logprobs`.
    Source: Cui et al. 2025 (arXiv:2505.22617), section 4 (token-wise centered cross-product).
    """
    p, a = (x if mask is None else x[mask] for x in (logprobs.double(), advantages.double()))
    if not len(p):
        return torch.zeros_like(logprobs)
    return ((logprobs - p.mean()) * (advantages - a.mean())).to(logprobs.dtype)


def draw_covariant(covariances: Tensor, share: float, seed: int, mask: Tensor | None = None) -> Tensor:
    """True for ceil(share n) tokens of n, drawn among those with a covariance from LOW to HIGH, or for all of these if
    they are fewer; of those in `mask` alone.

    Shapes: float [A], `mask` bool [A] -> bool [A]. `share` in (0, 1].
    Source: Cui et al. 2025 (arXiv:2505.22617), section 4 (Clip-Cov), with its bounds.
    """
    counted = torch.ones_like(covariances, dtype=torch.bool) if mask is None else mask
    (places,) = (counted & (covariances >= LOW) & (covariances <= HIGH)).nonzero(as_tuple=True)
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    drawn = torch.zeros_like(counted)
    drawn[places[order[: math.ceil(share * int(counted.sum()))]]] = True
    return drawn
