"""Distance of the sampler's log-probabilities from the trainer's, for the same tokens and weights."""

import torch
from torch import Tensor

FEW = 32
"""Tokens, of a step with tokens of other versions too, that say nothing yet: two engines differ by much in a few."""


def comparable(versions: Tensor, version: int, *, keep: bool) -> Tensor:
    """The tokens whose log-probabilities the weights `version` give again: those that they sampled. None where these
    are FEW, or some of many and the sampler kept keys and values of earlier weights (`keep`, as `rollout.inFlight`).

    Shapes: `versions` int64 [A] -> bool [A].
    """
    same = versions == version
    if bool(same.all()) or (not keep and int(same.sum()) >= FEW):
        return same
    return torch.zeros_like(same)


def mean_abs_difference(logprobs: Tensor, sampled_logprobs: Tensor) -> Tensor:
    """mean |log p - log p_sampler| over tokens.

    Shapes: two float [A], A >= 1, in nats -> [] in nats, same dtype.
    """
    return (logprobs - sampled_logprobs).abs().mean()


def ratio_outside(logprobs: Tensor, sampled_logprobs: Tensor, low: float = 0.9, high: float = 1.1) -> Tensor:
    """The share of tokens whose ratio p / p_sampler leaves [low, high]; not a number counts as outside.

    Shapes: two float [A], A >= 1, in nats -> [] in [0, 1], same dtype.
    """
    ratio = (logprobs - sampled_logprobs).exp()
    inside = (ratio >= low) & (ratio <= high)
    return 1 - inside.to(logprobs.dtype).mean()
