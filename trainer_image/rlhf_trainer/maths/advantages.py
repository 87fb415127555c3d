"""Advantages of answer tokens."""

import torch
from torch import Tensor

from .ragged import pad, response_mask


def generalized_advantages(
    rewards: Tensor, values: Tensor, lengths: Tensor, gamma: float, gae_lambda: float
) -> tuple[Tensor, Tensor]:
    """A_t = delta_t + gamma lambda A_{t+1}, where delta_t = r_t + gamma V_{t+1} - V_t; and returns A_t + V_t.

    `values[t]` is V of the state in which token t is chosen; V after an answer's last token is 0.
    Shapes: `rewards`, `values` float [A] in units of reward, `lengths` int64 [N] -> (advantages, returns),
    both [A] in units of reward, same dtype. Raises ValueError where `lengths` do not fit.
    Source: Schulman et al. 2015 (arXiv:1506.02438), eq. 16.
    """
    # Zeros on the right of an answer make the value after its last token, and the advantage there, 0.
    padded_values = torch.nn.functional.pad(pad(values, lengths), (0, 1))
    deltas = pad(rewards, lengths) + gamma * padded_values[:, 1:] - padded_values[:, :-1]
    advantages = torch.zeros_like(deltas)
    following = deltas.new_zeros(len(lengths))
    for t in reversed(range(deltas.shape[1])):
        following = deltas[:, t] + gamma * gae_lambda * following
        advantages[:, t] = following
    packed = advantages[response_mask(lengths)]
    return packed, packed + values


def whiten(x: Tensor, epsilon: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over all answer tokens, population variance: one token gives 0.

    Shapes: float [A], A >= 1, any unit -> [A] without a unit, same dtype; mean 0, standard deviation 1.
    Source: Huang et al. 2022, "The 37 Implementation Details of PPO", detail 7 (advantage normalisation).
    """
    centered = x - x.mean()
    return centered * torch.rsqrt(centered.square().mean() + epsilon)
