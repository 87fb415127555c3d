"""Per-token estimates of the divergence from the reference policy, and the rewards made of them."""

import torch
from torch import Tensor

from .ragged import check_lengths


def token_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k1 = log p - log q of the sampled tokens: unbiased for KL(p || q), of either sign.

    Shapes: two float [A] in nats -> float [A] in nats, of the same dtype; p sampled the tokens.
    Source: Schulman 2020, "Approximating KL Divergence" (http://joschu.net/blog/kl-approx.html), k1.
    """
    return logprobs - reference_logprobs


def token_kl_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k3 = (r - 1) - log r with r = q / p of the sampled tokens: unbiased for KL(p || q), and not negative.

    Shapes: two float [A] in nats -> float [A] in nats, of the same dtype; p sampled the tokens.
    `token_kl_k3(old_logprobs, logprobs)` is what PPO logs as its approximate KL.
    Source: Schulman 2020, "Approximating KL Divergence" (http://joschu.net/blog/kl-approx.html), k3.
    """
    log_ratio = reference_logprobs - logprobs
    return torch.expm1(log_ratio) - log_ratio


def token_rewards(kl: Tensor, scores: Tensor, lengths: Tensor, kl_coefficient: float) -> Tensor:
    """r_t = -beta kl_t, plus the answer's score at its last token.

    Shapes: `kl` float [A] in nats, `scores` float [N] in units of reward, `lengths` int64 [N] -> [A] in units
    of reward, dtype of `kl`; `kl_coefficient` is beta, reward per nat. Raises ValueError where the
    lengths or scores do not fit.
    Source: Ziegler et al. 2019 (arXiv:1909.08593), eq. 2; Ouyang et al. 2022 (arXiv:2203.02155), eq. 2.
    """
    check_lengths(kl, lengths)
    if scores.shape != lengths.shape:
        raise ValueError(
            f"{len(lengths)} answers need as many scores, not an array of shape {tuple(scores.shape)}"
        )
    rewards = -kl_coefficient * kl
    rewards[lengths.cumsum(0) - 1] += scores.to(kl.dtype)
    return rewards
