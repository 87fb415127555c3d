"""Advantages of response tokens: generalized advantages, returns-to-go, whitening, REINFORCE++."""

import torch
from torch import Tensor

from .ragged import pad, response_mask


def generalized_advantages(
    rewards: Tensor, values: Tensor, lengths: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """A_t = delta_t + gamma lambda A_{t+1}, where delta_t = r_t + gamma V_{t+1} - V_t; and returns A_t + V_t.

    `values[t]` is V of the state in which token t is chosen; V after a response's last token is 0.
    Shapes: `rewards`, `values` float [A] in units of reward, `lengths` int64 [N] -> (advantages, returns), both [A] in
    units of reward, same dtype. Raises ValueError where `lengths` do not fit.
    Source: Schulman et al. 2015 (arXiv:1506.02438), eq. 16.
    """
    # Zeros on the right of a response make the value after its last token, and the advantage there, 0.
    padded_values = torch.nn.functional.pad(pad(values, lengths), (0, 1))
    deltas = pad(rewards, lengths) + gamma * padded_values[:, 1:] - padded_values[:, :-1]
    advantages = torch.zeros_like(deltas)
    following = deltas.new_zeros(len(lengths))
    for t in reversed(range(deltas.shape[1])):
        following = deltas[:, t] + gamma * gae_lambda * following
        advantages[:, t] = following
    packed = advantages[response_mask(lengths)]
    return packed, packed + values


def returns_to_go(rewards: Tensor, lengths: Tensor, gamma: float) -> Tensor:
    """G_t = r_t + gamma G_{t+1}, 0 after a response's last token.

    Shapes: `rewards` float [A] in units of reward, `lengths` int64 [N] -> [A] in the same unit and dtype.
    Raises ValueError where `lengths` do not fit.
    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 3.9; the generalized advantage of
    Schulman et al. 2015 (arXiv:1506.02438) with V = 0 and lambda = 1.
    """
    return generalized_advantages(rewards, torch.zeros_like(rewards), lengths, gamma, gae_lambda=1.0)[0]


def whiten(x: Tensor, epsilon: float = 1e-8, mask: Tensor | None = None) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over all response tokens, population variance: one token gives 0.

    With a `mask`, mean and variance are taken over its tokens, and the others become 0.
    Shapes: float [A], A >= 1, any unit, `mask` bool [A] -> [A] without a unit, same dtype; mean 0, standard deviation
    1. Pass the whole batch in one call: a part of it has another mean and variance.
    Source: Huang et al. 2022, "The 37 Implementation Details of PPO", detail 7 (advantage normalisation).
    """
    if mask is not None:
        whitened = torch.zeros_like(x)
        whitened[mask] = whiten(x[mask], epsilon)
        return whitened
    deviations = x - x.mean()
    return deviations * torch.rsqrt(deviations.square().mean() + epsilon)


def reinforce_pp_advantages(
    rewards: Tensor, lengths: Tensor, gamma: float = 1.0, *, mask: Tensor | None = None
) -> Tensor:
    """Returns-to-go of KL-penalised token rewards, whitened over all tokens of the batch: REINFORCE++.

    Tokens that `mask` does not count do not enter mean and variance, and get 0.
    Shapes: `rewards` float [A] in units of reward, `lengths` int64 [N], `mask` bool [A] -> [A] without a unit, dtype of
    `rewards`. Raises ValueError where they do not fit.
    Source: Hu et al. 2025 (arXiv:2501.03262), section 3.
    """
    return whiten(returns_to_go(rewards, lengths, gamma), mask=mask)
