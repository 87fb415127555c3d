"""Per-token estimates of the KL divergence from the reference policy, KL-penalised rewards, and the adaptive KL
coefficient.
"""

from typing import Literal

import torch
from torch import Tensor

from ..tensors.ragged import check_lengths, check_mask

Estimator = Literal["k1", "k2", "k3"]


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


def token_kl_k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k2 = (log p - log q)^2 / 2 of the sampled tokens: not negative, biased, with the gradient of KL(p || q).

    Shapes: two float [A] in nats -> float [A] in nats, of the same dtype; p sampled the tokens.
    Source: Schulman 2020, "Approximating KL Divergence" (http://joschu.net/blog/kl-approx.html), k2.
    """
    return (logprobs - reference_logprobs).square() / 2


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor, estimator: Estimator) -> Tensor:
    """KL(p || q) of each token by the estimator of that name, for a reward or, differentiable, for a loss.

    As a value k1 and k3 are unbiased. What counts is the gradient. As a loss, that in log p, whose expectation under p
    is 0 for k1 (it constrains nothing), that of KL(p || q) for k2, and that of KL(q || p) for k3, which GRPO's paper
    uses. As a reward, the estimate times that of log p, whose expectation is that of KL(p || q) for k1, and of
    KL(p || q) - KL(q || p) for k3, which vanishes to first order where p is near q, as does k2's.
    Shapes: two float [A] in nats -> float [A] in nats, of the same dtype; p sampled the tokens. Raises ValueError
    for another estimator.
    Source: Schulman 2020, "Approximating KL Divergence"; k3 in the loss Shao et al. 2024 (arXiv:2402.03300), eq. 4.
    """
    if estimator == "k1":
        return token_kl(logprobs, reference_logprobs)
    if estimator == "k2":
        return token_kl_k2(logprobs, reference_logprobs)
    if estimator == "k3":
        return token_kl_k3(logprobs, reference_logprobs)
    raise ValueError(f"estimator must be 'k1', 'k2' or 'k3'; got {estimator!r}")


def token_rewards(
    kl: Tensor,
    scores: Tensor,
    lengths: Tensor,
    kl_coefficient: float,
    *,
    fine_grained: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """r_t = -beta kl_t, plus the response's score at its last token, plus the token's own reward where given.

    Tokens outside `mask`, which the policy did not choose, get no penalty.
    Shapes: `kl` float [A] in nats, `scores` float [N] and `fine_grained` float [A] in units of reward, `lengths` int64
    [N], `mask` bool [A] -> [A] in units of reward, dtype of `kl`; `kl_coefficient` is beta, reward per nat.
    Raises ValueError where they do not fit.
    Source: Ziegler et al. 2019 (arXiv:1909.08593), eq. 2; Ouyang et al. 2022 (arXiv:2203.02155), eq. 2; rewards of
    tokens Wu et al. 2023 (arXiv:2306.01693), section 2.
    """
    check_lengths(kl, lengths)
    if scores.shape != lengths.shape:
        raise ValueError(
            f"{len(lengths)} responses need as many scores, not an array of shape {tuple(scores.shape)}"
        )
    rewards = -kl_coefficient * kl
    if mask is not None:
        check_mask(mask, lengths)
        rewards = rewards.masked_fill(~mask, 0.0)
    if fine_grained is not None:
        check_lengths(fine_grained, lengths)
        rewards += fine_grained.to(kl.dtype)
    rewards[lengths.cumsum(0) - 1] += scores.to(kl.dtype)
    return rewards


def adaptive_kl_coefficient(
    coefficient: float, observed: float, target: float, horizon: float, n: int
) -> float:
    """beta (1 + min(n / horizon, 1) clip(observed / target - 1, -0.2, 0.2)): the coefficient of the next step.

    `observed` and `target` are KL(p || q) of a whole response in nats, `n` the responses of this step, and
    `horizon` the number of responses over which a KL that is 20% or more off target changes beta by about 20%.
    A step of more than a horizon counts as one: from five on beta would become negative, a reward for divergence.
    Raises ValueError unless target and horizon are positive.
    Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2, with its K_beta = n / horizon as in their code.
    """
    if target <= 0 or horizon <= 0:
        raise ValueError(f"target and horizon of the KL must be above 0; got {target} and {horizon}")
    error = min(max(observed / target - 1, -0.2), 0.2)
    return coefficient * (1 + error * min(n / horizon, 1))
