"""Importance weights of responses sampled by other weights or another engine."""

from typing import Literal

import torch
from torch import Tensor

from ..tensors.ragged import sequence_sums, to_tokens


def importance_weights(
    logprobs: Tensor,
    sampled_logprobs: Tensor,
    lengths: Tensor,
    level: Literal["token", "sequence", "geometric"],
    *,
    cap: float,
    mask: float | None,
) -> Tensor:
    """min(p / p_sampler, cap) of each token, or of each whole response at each of its tokens, or the geometric mean of
    a response's ratios there, whose spread does not grow with the length; 0 where the ratio is above `mask` or below
    1 / `mask`.

    Shapes: two float [A] in nats, `lengths` int64 [N] -> [A] without a unit, same dtype.
    Source: Yao et al. 2025 (truncated importance sampling between engines); Espeholt et al. 2018 (IMPALA,
    arXiv:1802.01561), section 4.1; with the mask Team Ling 2025 (IcePop, arXiv:2510.18855), eq. 3; the geometric mean
    Zheng et al. 2025 (arXiv:2507.18071), eq. 7.
    """
    difference = logprobs - sampled_logprobs
    if level != "token":
        of_responses = sequence_sums(difference, lengths)
        difference = to_tokens(of_responses if level == "sequence" else of_responses / lengths, lengths)
    ratio = difference.exp()
    weights = ratio.clamp(max=cap)
    if mask is not None:
        weights = torch.where((ratio > mask) | (ratio < 1 / mask), torch.zeros_like(weights), weights)
    return weights


def effective_share(weights: Tensor) -> Tensor:
    """Kish's effective sample size by the number of samples: (sum w)^2 / (n sum w^2), 0 where all weights are 0.

    Shapes: float [A], A >= 1 -> [] in [0, 1], same dtype.
    """
    total = (weights**2).sum() * len(weights)
    return weights.sum() ** 2 / total if total > 0 else torch.zeros_like(total)
