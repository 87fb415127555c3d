"""Difference between the sampler's and the trainer's log-probabilities of the same tokens under the same weights."""

import torch
from torch import Tensor

AGREEMENT = (
    *("logprob_difference", "token_mult_prob_error", "ratio_outside_share"),
    *("logprob_outlier_share", "logprob_outliers", "logprob_difference_max"),
)
"""Metrics that compare generator and trainer under the same weights."""
APART = 1.0
"""Difference in nats above which a token is an outlier: one engine gives it more than e times the probability."""
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


def agreement(logprobs: Tensor, sampled_logprobs: Tensor, tokens: int) -> dict[str, Tensor]:
    """Agreement metrics of a part of `tokens` tokens, by name. Those of the parts are added up, but for the maximum:

    - means over tokens of |log p - log p_sampler|, of its exp (NeMo-RL recommends less than 1.1), of ratios outside
      [0.9, 1.1], and of outliers
    - the number of outliers: tokens whose |log p - log p_sampler| is above APART, or NaN
    - the largest |log p - log p_sampler|, 0 of no tokens

    Shapes: two float [A], A >= 0, in nats -> each [], same dtype.
    """
    apart = (logprobs - sampled_logprobs).abs()
    share, outliers = len(apart) / max(1, tokens), (~(apart <= APART)).to(apart.dtype).sum()
    if not len(apart):
        return dict.fromkeys(AGREEMENT, outliers)
    means = apart.mean(), apart.exp().mean(), ratio_outside(logprobs, sampled_logprobs)
    metrics = (*(share * mean for mean in means), outliers / tokens, outliers, apart.max())
    return dict(zip(AGREEMENT, metrics, strict=True))


def ratio_outside(logprobs: Tensor, sampled_logprobs: Tensor, low: float = 0.9, high: float = 1.1) -> Tensor:
    """The share of tokens whose ratio p / p_sampler leaves [low, high]; NaN counts as outside.

    Shapes: two float [A], A >= 1, in nats -> [] in [0, 1], same dtype.
    """
    ratio = (logprobs - sampled_logprobs).exp()
    inside = (ratio >= low) & (ratio <= high)
    return 1 - inside.to(logprobs.dtype).mean()
