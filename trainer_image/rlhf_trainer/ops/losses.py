"""Losses of the training nodes: each makes, of one minibatch's columns, weighted sums over its micro-batches."""

from torch import Tensor

from ..batches import Loss, MicroBatch
from ..maths.agreement import AGREEMENT, agreement, comparable
from ..maths.kl import kl_estimate, token_kl_k3
from ..maths.losses import (
    clipped_surrogate,
    clipped_value_loss,
    outside_clip,
    pairwise_loss,
    ratio,
    sequence_ratio,
    token_weights,
)
from ..maths.preference import dpo_loss, implicit_rewards, ipo_loss
from ..maths.ragged import sequence_sums
from ..maths.values import normalize
from ..records import Columns
from .compute import kl_coefficient, value_moments
from .context import OpContext

Named = dict[str, Tensor]


def likelihood(columns: Columns, _ctx: OpContext) -> Loss:
    """Mean negative log-likelihood of the response tokens that are trained on, in nats."""
    weights = token_weights(columns.lengths, "token", columns.mask)

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        return -(weights[micro.response_index].to(logprobs.device) * logprobs).sum(), {}

    return loss


def preference(columns: Columns, _ctx: OpContext) -> Loss:
    """Mean Bradley-Terry loss of rows (2i, 2i + 1), the better one first, and the share of pairs ordered rightly."""
    pairs = len(columns) // 2

    def loss(scores: Tensor, _micro: MicroBatch) -> tuple[Tensor, Named]:
        better, worse = scores[0::2], scores[1::2]
        right = (better > worse).to(scores.dtype)
        return pairwise_loss(better, worse).sum() / pairs, {"accuracy": right.sum() / pairs}

    return loss


def dpo(columns: Columns, ctx: OpContext) -> Loss:
    """Mean DPO or IPO loss of rows (2i, 2i + 1), the better one first; implicit rewards in units of beta x nats."""
    settings, pairs = ctx.settings, len(columns) // 2

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        lengths = columns.lengths[micro.rows].to(logprobs.device)
        reference = columns["reference_logprobs"][micro.response_index].to(logprobs.device)
        own, other = sequence_sums(logprobs, lengths), sequence_sums(reference, lengths)
        rewards = implicit_rewards(own, other, settings.beta)
        better, worse = rewards[0::2], rewards[1::2]
        margins = better - worse
        of_pairs = (
            dpo_loss(margins, settings.label_smoothing)
            if settings.loss == "sigmoid"
            else ipo_loss(margins, settings.beta)
        )
        return of_pairs.sum() / pairs, {
            "accuracy": (margins > 0).to(margins.dtype).sum() / pairs,
            "reward_margin": margins.sum() / pairs,
            "chosen_reward": better.sum() / pairs,
            "rejected_reward": worse.sum() / pairs,
        }

    return loss


def policy(columns: Columns, ctx: OpContext) -> Loss:
    """Clipped surrogate of each token's importance ratio, with the settings' KL penalty and entropy bonus."""
    return _surrogate(columns, ctx, sequences=False)


def gspo(columns: Columns, ctx: OpContext) -> Loss:
    """The same of each response's importance ratio (Zheng et al. 2025, arXiv:2507.18071, eq. 5)."""
    return _surrogate(columns, ctx, sequences=True)


def value(columns: Columns, ctx: OpContext) -> Loss:
    """Clipped squared error of the critic against the returns, in the units that it learns."""
    settings = ctx.settings
    weights = _weights(columns, ctx)
    old_values, all_returns = columns["values"], columns["returns"]
    if settings.normalize_values:
        moments = value_moments(ctx)
        old_values, all_returns = normalize(old_values, moments), normalize(all_returns, moments)

    def loss(values: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        index, device = micro.response_index, values.device
        old, returns = old_values[index].to(device), all_returns[index].to(device)
        per_token = clipped_value_loss(values, old, returns, settings.clip_value or None)
        return (weights[index].to(device) * per_token).sum(), {}

    return loss


def _surrogate(columns: Columns, ctx: OpContext, *, sequences: bool) -> Loss:
    settings = ctx.settings
    weights = _weights(columns, ctx)
    shares = token_weights(
        columns.lengths, "token", columns.mask
    )  # of metrics, whatever the loss's aggregation
    low = settings.clip_ratio
    high = low if settings.clip_ratio_high is None else settings.clip_ratio_high
    penalised = settings.kl_in == "loss" and "reference_logprobs" in columns
    tokens = max(1, int(columns.lengths.sum()))
    # Where a step is one update, the policy before it is the policy in it, and is compared with the sampler here.
    keep = ctx.spec.rollout.in_flight == "keep"
    compared = None if "logprobs" in columns else comparable(columns["versions"], ctx.step, keep=keep)

    def loss(output: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        index, device = micro.response_index, output.device
        logprobs, entropy = output.unbind(-1)
        weight, share = weights[index].to(device), shares[index].to(device)
        if "importance_weights" in columns:
            corrected = weight * columns["importance_weights"][index].to(device)
        else:
            corrected = weight

        def column(name: str) -> Tensor:
            return columns[name][index].to(device)

        new = logprobs.detach()
        old = column("logprobs") if compared is None else new
        mask = None if columns.mask is None else columns.mask[index].to(device)
        lengths = columns.lengths[micro.rows].to(device)
        r = sequence_ratio(logprobs, old, lengths, mask) if sequences else ratio(logprobs, old)
        total = (corrected * clipped_surrogate(r, column("advantages"), low, high, settings.dual_clip)).sum()
        statistics = {
            "clip_fraction": (share * outside_clip(r.detach(), low, high)).sum(),
            "update_kl": (share * token_kl_k3(old, new)).sum(),
            "entropy": entropy.detach().sum() / tokens,
            "ratio_mean": (share * r.detach()).sum(),
        }
        if penalised:
            kl = kl_estimate(logprobs, column("reference_logprobs"), settings.kl_estimator)
            total = total + kl_coefficient(ctx) * (weight * kl).sum()
        if settings.entropy_coefficient:
            total = total - settings.entropy_coefficient * (weight * entropy).sum()
        if compared is not None:
            same = compared[index]
            if bool(compared.any()):
                pair = new[same.to(device)], columns["sampled_logprobs"][index[same]].to(device)
                statistics |= _against_sampler(*pair, int(compared.sum()))
            if "reference_logprobs" in columns:
                statistics["kl_mean"] = (new - column("reference_logprobs")).sum() / tokens
        return total, statistics

    return loss


def _against_sampler(new: Tensor, sampled: Tensor, tokens: int) -> Named:
    """A micro-batch's part of the means over all tokens of a minibatch; see `maths.agreement`."""
    if not len(new):
        return dict.fromkeys(AGREEMENT, new.sum())
    return {name: len(new) / tokens * mean for name, mean in agreement(new, sampled).items()}


def _weights(columns: Columns, ctx: OpContext) -> Tensor:
    longest = ctx.spec.sampling.max_new_tokens
    return token_weights(columns.lengths, ctx.settings.loss_aggregation, columns.mask, constant=longest)
