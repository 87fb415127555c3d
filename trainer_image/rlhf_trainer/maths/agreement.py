"""How far the sampler's log-probabilities are from the trainer's for the same tokens and weights."""

from torch import Tensor


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


def mean_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """mean p / p_old over tokens, over those alone that `mask` counts: 1 at the weights that sampled.

    An update stops early where that of one of its minibatches passes a bound: the policy has left the region in
    which the samples say something about it.
    Shapes: two float [A] in nats, `mask` bool [A] -> [] without a unit, same dtype; 1 where no token counts.
    Source: Mei et al. 2024 (ReaL, arXiv:2406.14088), early_stop_imp_ratio of its PPO.
    """
    ratios = (logprobs - old_logprobs).exp()
    if mask is not None:
        ratios = ratios[mask]
    return ratios.mean() if len(ratios) else ratios.new_ones(())
