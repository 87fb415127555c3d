"""Divergence of two distributions over the same few tokens, all others being one more outcome.

It is at most that over the whole vocabulary, 0 only where all compared probabilities are equal, and the whole one where
no tokens are left over. Its gradient is that of the compared probabilities: nothing is sampled.
"""

import math

import torch
from torch import Tensor

from ..tensors.sampling_mask import LEFT_OUT

_SURE = -1e-6
"""The highest log of the summed probability of the compared tokens: float32 cannot tell what is left from rounding."""


def with_rest(logprobs: Tensor) -> Tensor:
    """Log-probabilities of K tokens and, last, of all others: log(1 - sum p).

    Shapes: float [A, K] in nats, LEFT_OUT for no token -> [A, K + 1] in nats, same dtype.
    """
    total = logprobs.logsumexp(-1, keepdim=True).clamp(max=_SURE)
    return torch.cat([logprobs, torch.log(-torch.expm1(total))], dim=-1)


def top_divergence(logprobs: Tensor, teacher_logprobs: Tensor, beta: float) -> Tensor:
    """D of each place between the teacher's p and the policy's q, over K tokens and the rest: KL(q || p) at beta = 1,
    KL(p || q) at 0, and between them beta KL(p || m) + (1 - beta) KL(q || m) with m = beta p + (1 - beta) q.

    Near 0 the last one is beta times the forward KL, near 1 it is (1 - beta) times the reverse KL. Places where the
    teacher has LEFT_OUT count for nothing.
    Shapes: two float [A, K] in nats -> [A] in nats, dtype of `logprobs`. Raises ValueError unless 0 <= beta <= 1.
    Source: Agarwal et al. 2024 (arXiv:2306.13649), section 2 (generalized Jensen-Shannon divergence) and 3 (GKD: the
    divergence of each token on the student's own responses, which are no part of the gradient).
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be from 0 to 1; got {beta}")
    absent = teacher_logprobs <= LEFT_OUT / 2
    p, q = with_rest(teacher_logprobs.to(logprobs.dtype)), with_rest(logprobs.masked_fill(absent, LEFT_OUT))
    if beta == 0:
        return _kl(p, q)
    if beta == 1:
        return _kl(q, p)
    m = torch.logaddexp(p + math.log(beta), q + math.log1p(-beta))
    return beta * _kl(p, m) + (1 - beta) * _kl(q, m)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.exp() * (p - q)).sum(-1)
