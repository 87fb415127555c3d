"""Difference between the sampler's and the trainer's log-probabilities of the same tokens under the same weights."""

import torch
from torch import Tensor

AGREEMENT = ("logprob_difference", "token_mult_prob_error", "ratio_outside_share")
"""Metrics that compare generator and trainer under the same weights."""
FEW = 32
"""Minimum number of comparable tokens in a step that also has tokens of other versions: fewer are too noisy."""


def comparable(versions: Tensor, version: int, *, keep: bool) -> Tensor:
    """Mask of the tokens that weight version `version` sampled, whose log-probabilities the trainer can reproduce. All
    false if they are fewer than FEW among others, or if there are others and the sampler kept keys and values of
    earlier weights (`keep`, as `rollout.inFlight`).

    Shapes: `versions` int64 [A] -> bool [A].
    """
    same = versions == version
    if bool(same.all()) or (not keep and int(same.sum()) >= FEW):
        return same
    return torch.zeros_like(same)


def agreement(logprobs: Tensor, sampled_logprobs: Tensor) -> dict[str, Tensor]:
    """Agreement metrics as means over tokens, by name. `token_mult_prob_error` is mean exp |log p - log p_sampler|;
    NeMo-RL recommends less than 1.1.

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
    """The share of tokens whose ratio p / p_sampler leaves [low, high]; NaN counts as outside.

    Shapes: two float [A], A >= 1, in nats -> [] in [0, 1], same dtype.
    """
    ratio = (logprobs - sampled_logprobs).exp()
    inside = (ratio >= low) & (ratio <= high)
    return 1 - inside.to(logprobs.dtype).mean()
