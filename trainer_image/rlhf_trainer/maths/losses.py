"""Losses of policy, critic and reward model, each per token or pair, and the weights that sum them up."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

Aggregation = Literal["token", "sequence"]


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """p / p_old of the sampled tokens.

    Shapes: two float [A] in nats -> [A] without a unit, same dtype.
    Source: Schulman et al. 2017 (arXiv:1707.06347), section 3, r_t(theta).
    """
    return torch.exp(logprobs - old_logprobs)


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_ratio: float
) -> Tensor:
    """-min(r A, clip(r, 1 - c, 1 + c) A) of each token with ratio r, advantage A and c = `clip_ratio`.

    Shapes: `logprobs`, `old_logprobs` float [A] in nats, `advantages` [A] -> [A] in units of the advantages,
    same dtype.
    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7, negated.
    """
    r = ratio(logprobs, old_logprobs)
    return -torch.minimum(r * advantages, r.clamp(1 - clip_ratio, 1 + clip_ratio) * advantages)


def clipped(logprobs: Tensor, old_logprobs: Tensor, clip_ratio: float) -> Tensor:
    """1 where the ratio lies outside [1 - c, 1 + c], else 0; the mean over tokens is the clip fraction.

    Shapes: two float [A] in nats -> [A] without a unit, same dtype.
    Source: Huang et al. 2022, "The 37 Implementation Details of PPO", detail 12 (debug variables, clipfrac).
    """
    return ((ratio(logprobs, old_logprobs) - 1).abs() > clip_ratio).to(logprobs.dtype)


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_value: float | None
) -> Tensor:
    """max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2 of each token; (V - R)^2 / 2 without a c.

    Shapes: three float [A] and c = `clip_value` in units of reward -> [A] in those squared, same dtype.
    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 9; the clip and the half as in Huang et al. 2022,
    "The 37 Implementation Details of PPO", detail 9 (value function loss clipping).
    """
    loss = (values - returns).square()
    if clip_value is not None:
        near = torch.clamp(values, old_values - clip_value, old_values + clip_value)
        loss = torch.maximum(loss, (near - returns).square())
    return loss / 2


def token_weights(lengths: Tensor, aggregation: Aggregation) -> Tensor:
    """Weights w with `(w * loss).sum()` = the mean over all tokens ("token": 1/A each), or the mean over
    sequences of each one's mean ("sequence": 1/(N length)).

    They sum to 1 over a whole minibatch. Made for all of it and cut up with it, they make the losses of its
    micro-batches add up to the loss of the minibatch.
    Shapes: `lengths` int64 [N] >= 1 -> float32 [A]. Raises ValueError for another aggregation.
    Source: "token" Yu et al. 2025 (arXiv:2503.14476), eq. 8; "sequence" Shao et al. 2024 (arXiv:2402.03300),
    eq. 3.
    """
    if aggregation == "token":
        per_sequence = torch.full(lengths.shape, 1.0, device=lengths.device) / lengths.sum()
    elif aggregation == "sequence":
        per_sequence = 1.0 / (len(lengths) * lengths)
    else:
        raise ValueError(f"aggregation is 'token' or 'sequence', not {aggregation!r}")
    return torch.repeat_interleave(per_sequence, lengths)


def pairwise_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected) of each pair: the Bradley-Terry likelihood of the preference.

    Shapes: two float [P] in units of reward -> [P] in nats, same dtype.
    Source: Ouyang et al. 2022 (arXiv:2203.02155), eq. 1, for one pair.
    """
    return -logsigmoid(chosen - rejected)
