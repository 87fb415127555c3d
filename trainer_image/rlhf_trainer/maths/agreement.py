"""Distance of the sampler's log-probabilities from the trainer's, for the same tokens and weights."""

import torch
from torch import Tensor

AGREEMENT = ("logprob_difference", "token_mult_prob_error", "ratio_outside_share")
"""Metrics that compare generator and trainer at the same weights."""
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


def agreement(logprobs: Tensor, sampled_logprobs: Tensor) -> dict[str, Tensor]:
    """Means over tokens, by their names in a step's metrics. `token_mult_prob_error`, which NeMo-RL wants below 1.1, is
    mean exp |log p - log p_sampler|.

    Shapes: two float [A], A >= 1, in nats -> each [], same dtype.
    """
    factor = (logprobs - sampled_logprobs).abs().exp().mean()
    means = mean_abs_difference(logprobs, sampled_logprobs), factor, ratio_outside(logprobs, sampled_logprobs)
    return dict(zip(AGREEMENT, means, strict=True))


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
