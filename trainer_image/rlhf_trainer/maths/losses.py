"""Losses of policy, critic and reward model, each per token or pair, and the weights of their sum.

A policy loss is a ratio, of tokens (PPO, GRPO) or of sequences (GSPO), in a clipped surrogate; or one that weighs
log-probabilities (CISPO).
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from ..tensors.ragged import check_mask, pad, sequence_sums, to_tokens

Aggregation = Literal["token", "sequence", "constant"]


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """p / p_old of the sampled tokens.

    Shapes: two float [A] in nats -> [A] without a unit, same dtype.
    Source: Schulman et al. 2017 (arXiv:1707.06347), section 3, r_t(theta).
    """
    return torch.exp(logprobs - old_logprobs)


def sequence_ratio(
    logprobs: Tensor, old_logprobs: Tensor, lengths: Tensor, mask: Tensor | None = None
) -> Tensor:
    """s sg[1 / p] p of each token, where s = (p(y) / p_old(y))^(1/|y|) of its sequence and sg stops gradients.

    Its value is s at every token, and the mean over a sequence's tokens has the gradient of s: GSPO's loss is
    `clipped_surrogate` of it, aggregated by "sequence". Every sequence has to be whole, since s is taken over all
    its tokens: a micro-batch holds whole sequences. Where `mask` is given, s and |y| are of the tokens it counts;
    a sequence without any has s = 1.
    Shapes: `logprobs`, `old_logprobs` float [A] in nats, `lengths` int64 [N], `mask` bool [A] -> [A] without a
    unit, same dtype. Raises ValueError where they do not fit.
    Source: Zheng et al. 2025 (arXiv:2507.18071), eq. 7 (s) and 14 (its form for each token).
    """
    counted = torch.ones_like(logprobs) if mask is None else mask.to(logprobs.dtype)
    counts = sequence_sums(counted.detach(), lengths).clamp(min=1)
    sums = sequence_sums((logprobs - old_logprobs).detach(), lengths, mask)
    return to_tokens(torch.exp(sums / counts), lengths) * torch.exp(logprobs - logprobs.detach())


def clipped_surrogate(
    r: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) of each token with ratio r and advantage A.

    With `dual_clip` = c > 1 no more than -c A where A < 0: a token of negative advantage that became far more
    likely (stale samples) stops pulling, where PPO's own clip bounds only the other side.
    Shapes: `r` (of `ratio` or `sequence_ratio`), `advantages` float [A] -> [A] in units of the advantages, same
    dtype. Raises ValueError unless c > 1.
    Source: Schulman et al. 2017 (arXiv:1707.06347), eq. 7, negated; clip_high > clip_low Yu et al. 2025
    (arXiv:2503.14476), eq. 10 (clip-higher); c Ye et al. 2020 (arXiv:1912.09729), section "Dual-clip PPO".
    """
    loss = -torch.minimum(r * advantages, r.clamp(1 - clip_low, 1 + clip_high) * advantages)
    if dual_clip is None:
        return loss
    if dual_clip <= 1:
        raise ValueError(f"the dual clip must be a ratio above 1, such as 3; got {dual_clip}")
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def clipped_weight_loss(
    r: Tensor, logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> Tensor:
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p of each token with ratio r, where sg stops gradients: its
    clipped ratio weighs the gradient of its log-probability, which is never cut off.

    Shapes: `r` of `ratio`, `logprobs` in nats, `advantages`: float [A] -> [A] in nats times units of the advantages,
    same dtype.
    Source: MiniMax 2025 (arXiv:2506.13585), eq. 4 and 5 (CISPO), negated.
    """
    return -r.detach().clamp(1 - clip_low, 1 + clip_high) * advantages * logprobs


def outside_clip(r: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """1 where the ratio lies outside [1 - clip_low, 1 + clip_high], else 0; the mean is the clip fraction.

    Shapes: `r` float [A] -> [A] without a unit, same dtype.
    Source: Huang et al. 2022, "The 37 Implementation Details of PPO", detail 12 (debug variables, clipfrac).
    """
    change = r - 1
    return ((change > clip_high) | (-change > clip_low)).to(r.dtype)


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


def token_weights(
    lengths: Tensor,
    aggregation: Aggregation,
    mask: Tensor | None = None,
    *,
    constant: int | None = None,
) -> Tensor:
    """Weights w with `(w * loss).sum()` = the mean over all tokens ("token": 1/A each), the mean over sequences of each
    one's mean ("sequence": 1/(N length)), or the mean over sequences of each one's sum divided by the same number of
    tokens ("constant": 1/(N constant)), such as the longest response allowed.

    Tokens outside `mask` have weight 0 and count in no length and not in A; a sequence without other tokens does not
    count in the N of "sequence". For "constant", N counts all sequences, so that masking does not raise the weight of
    the rest. With an empty mask all weights are 0.

    "token" and "sequence" weights sum to 1 over a whole minibatch. Computed for the minibatch and split with it, they
    make the losses of its micro-batches add up to the minibatch's loss.
    Shapes: `lengths` int64 [N] >= 1, `mask` bool [A] -> float32 [A]. Raises ValueError for another aggregation, for
    "constant" without a positive constant, and where mask and lengths do not fit.
    Source: "token" Yu et al. 2025 (arXiv:2503.14476), eq. 8; "sequence" Shao et al. 2024 (arXiv:2402.03300), eq. 3;
    "constant" Liu et al. 2025 (arXiv:2503.20783), section 3.2 (Dr. GRPO).
    """
    if mask is not None:
        check_mask(mask, lengths)
    counts = lengths if mask is None else pad(mask, lengths).sum(1)
    if aggregation == "token":
        per_sequence = torch.full(lengths.shape, 1.0, device=lengths.device) / counts.sum()
    elif aggregation == "sequence":
        per_sequence = 1.0 / (counts.count_nonzero() * counts)
    elif aggregation == "constant":
        if constant is None or constant <= 0:
            raise ValueError(f"aggregation 'constant' needs a number of tokens above 0; got {constant}")
        per_sequence = torch.full(lengths.shape, 1.0 / (len(lengths) * constant), device=lengths.device)
    else:
        raise ValueError(f"aggregation must be 'token', 'sequence' or 'constant'; got {aggregation!r}")
    weights = torch.repeat_interleave(per_sequence, lengths)
    return weights if mask is None else weights.masked_fill(~mask, 0.0)


def centering_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """(chosen + rejected)^2 of each pair: only differences are learned, and this keeps their sum near 0.

    Shapes: two float [P] in units of reward -> [P] in those squared, same dtype.
    Source: Eisenstein et al. 2023 (arXiv:2312.09244), the regularizer of their reward models.
    """
    return (chosen + rejected).square()


def pairwise_loss(chosen: Tensor, rejected: Tensor, margin: Tensor | float = 0.0) -> Tensor:
    """-log sigmoid(chosen - rejected - margin) of each pair: the Bradley-Terry likelihood of the preference, with the
    margin by which the first score is to be higher.

    Shapes: float [P] in units of reward, `margin` one for all or [P] -> [P] in nats, same dtype.
    Source: Ouyang et al. 2022 (arXiv:2203.02155), eq. 1, for one pair; Touvron et al. 2023 (arXiv:2307.09288), eq. 2.
    """
    return -logsigmoid(chosen - rejected - margin)
