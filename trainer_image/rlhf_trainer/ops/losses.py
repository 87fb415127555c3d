"""Losses of likelihoods, preferences and critics: each turns a minibatch's columns into weighted sums over its
micro-batches."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_api.algorithms.dpo import DPO
from rlhf_api.algorithms.kto import KTO
from rlhf_api.algorithms.ppo import PPO
from rlhf_api.algorithms.reward import RewardModel
from rlhf_api.graph import LABEL, MARGIN, STEP_LABEL

from ..maths.kl import token_kl
from ..maths.losses import centering_loss, clipped_value_loss, pairwise_loss, token_weights
from ..maths.preference import dpo_loss, implicit_rewards, ipo_loss, kto_loss, odds_ratio_loss
from ..maths.steps import step_likelihood_loss
from ..maths.values import normalize
from ..tensors.batches import Loss, MicroBatch
from ..tensors.columns import Columns
from ..tensors.packed import to_device
from ..tensors.ragged import sequence_sums
from .compute import value_moments
from .context import OpContext
from .policy_losses import comparable_tokens, loss_weights, sampler_agreement

HALF = 0.5
"""Probability above which a step counts as right."""
Named = dict[str, Tensor]


def likelihood(columns: Columns, _ctx: OpContext) -> Loss:
    """Mean negative log-likelihood of the response tokens that are trained on, in nats."""
    weights = token_weights(columns.lengths, "token", columns.mask)

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        return -(to_device(weights[micro.response_index], logprobs.device) * logprobs).sum(), {}

    return loss


def preference(columns: Columns, ctx: OpContext) -> Loss:
    """Mean Bradley-Terry loss of rows (2i, 2i + 1), chosen first, with the settings' centering and the column MARGIN
    if there is one, and the share of pairs ranked correctly."""
    pairs = len(columns) // 2
    centering = ctx.settings.centering if isinstance(ctx.settings, RewardModel) else 0.0

    def loss(scores: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        better, worse = scores[0::2], scores[1::2]
        margin = to_device(columns[MARGIN][micro.rows[0::2]], scores.device) if MARGIN in columns else 0.0
        right = (better > worse).to(scores.dtype)
        of_pairs = pairwise_loss(better, worse, margin)
        if centering:
            of_pairs = of_pairs + centering * centering_loss(better, worse)
        return of_pairs.sum() / pairs, {"accuracy": right.sum() / pairs}

    return loss


def step_likelihood(columns: Columns, _ctx: OpContext) -> Loss:
    """Mean negative log-likelihood of the labels of steps, at their last tokens, in nats; the share of steps that are
    judged as their label is; and the mean probability of being right, of right steps and of wrong ones (0 where a step
    of the job has none)."""
    labels = columns[STEP_LABEL]
    right, wrong = labels > HALF, (labels >= 0) & (labels <= HALF)
    count, *counts = (max(1, int(of.sum())) for of in (labels >= 0, right, wrong))

    def loss(scores: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        index, device = micro.response_index, scores.device
        label, *kinds = (to_device(of[index], device) for of in (labels, right, wrong))
        ends, probability = label >= 0, torch.sigmoid(scores.detach())
        of_steps = torch.where(ends, step_likelihood_loss(scores, label.clamp(min=0)), 0.0)
        agree = (probability > HALF) == kinds[0]
        of_right, of_wrong = (
            (probability * kind).sum() / number for kind, number in zip(kinds, counts, strict=True)
        )
        return of_steps.sum() / count, {
            "accuracy": (agree & ends).sum() / count,
            "right_step_score": of_right,
            "wrong_step_score": of_wrong,
        }

    return loss


def dpo(columns: Columns, ctx: OpContext[DPO]) -> Loss:
    """Mean of the settings' loss of rows (2i, 2i + 1), chosen first, and of the chosen responses' likelihood. Rewards
    are in units of beta x nats, or of beta x nats per token without a reference. Of sampled responses also the metrics
    of `_of_sampled`."""
    settings, pairs = ctx.settings, len(columns) // 2
    of_sampled = _of_sampled(columns, ctx)

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        lengths = columns.lengths[micro.rows]
        own = sequence_sums(logprobs, lengths)
        means = own / to_device(lengths, own.device)
        if settings.has_reference:
            reference = to_device(columns["reference_logprobs"][micro.response_index], logprobs.device)
            rewards = implicit_rewards(own, sequence_sums(reference, lengths), settings.scale)
        else:
            rewards = settings.scale * means
        better, worse = rewards[0::2], rewards[1::2]
        margins = better - worse
        if settings.loss == "ipo":
            of_pairs = ipo_loss(margins, settings.scale)
        elif settings.loss == "orpo":
            of_pairs = settings.scale * odds_ratio_loss(means[0::2], means[1::2])
        else:
            of_pairs = dpo_loss(margins, settings.label_smoothing, settings.margin)
        if settings.likelihood:
            of_pairs = of_pairs - settings.likelihood * means[0::2]
        return of_pairs.sum() / pairs, {
            "accuracy": (margins > 0).to(margins.dtype).sum() / pairs,
            "reward_margin": margins.sum() / pairs,
            "chosen_reward": better.sum() / pairs,
            "rejected_reward": worse.sum() / pairs,
            **of_sampled(logprobs.detach(), micro),
        }

    return loss


def _of_sampled(columns: Columns, ctx: OpContext[DPO]) -> Callable[[Tensor, MicroBatch], Named]:
    """Metrics of a micro-batch by the policy's log-probabilities [A_mb]: the mean divergence from the reference, and
    the agreement with the sampler. None of given responses, and where the columns have the log-probabilities."""
    if "sampled_logprobs" not in columns or "logprobs" in columns:
        return lambda _logprobs, _micro: {}
    compared, count = comparable_tokens(columns, ctx), int(columns.lengths.sum())

    def metrics(logprobs: Tensor, micro: MicroBatch) -> Named:
        index, named = micro.response_index, dict[str, Tensor]()
        if "reference_logprobs" in columns:
            kl = token_kl(logprobs, to_device(columns["reference_logprobs"][index], logprobs.device))
            named["kl_mean"] = kl.sum() / count
        return named | sampler_agreement(columns, compared, index, logprobs)

    return metrics


def kto(columns: Columns, ctx: OpContext[KTO]) -> Loss:
    """Mean KTO loss of labeled answers. Rewards are in units of beta x nats; their means are over the answers of a
    label, 0 where a step has none."""
    settings, labels, count = ctx.settings, columns[LABEL], len(columns)
    counts = [max(1, int((labels == label).sum())) for label in (1, -1)]
    weights = settings.desirable_weight, settings.undesirable_weight

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        lengths, device = columns.lengths[micro.rows], logprobs.device
        reference = to_device(columns["reference_logprobs"][micro.response_index], device)
        log_ratios = sequence_sums(logprobs - reference, lengths)
        label, baseline = (to_device(columns[name][micro.rows], device) for name in (LABEL, "kl_baseline"))
        rewards = settings.beta * log_ratios.detach()
        chosen, rejected = (
            (rewards * (label == own)).sum() / number for own, number in zip((1, -1), counts, strict=True)
        )
        return kto_loss(log_ratios, baseline, label, settings.beta, weights).sum() / count, {
            "reward_margin": chosen - rejected,
            "chosen_reward": chosen,
            "rejected_reward": rejected,
            "kl_baseline": baseline.sum() / count,
        }

    return loss


def value(columns: Columns, ctx: OpContext[PPO]) -> Loss:
    """Clipped squared error of the critic against the returns. If values are normalised, in units of the new moments;
    the clip is around what the critic said, whatever units it was trained with then."""
    settings = ctx.settings
    weights = loss_weights(columns, ctx)
    old_values, all_returns = columns["values"], columns["returns"]
    if settings.normalize_values:
        moments = value_moments(ctx)
        # `gae` writes them; another operation may give values in units of reward.
        has_outputs = "critic_outputs" in columns
        old_values = columns["critic_outputs"] if has_outputs else normalize(old_values, moments)
        all_returns = normalize(all_returns, moments)

    def loss(values: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        index, device = micro.response_index, values.device
        old, returns = to_device(old_values[index], device), to_device(all_returns[index], device)
        per_token = clipped_value_loss(values, old, returns, settings.clip_value or None)
        return (to_device(weights[index], device) * per_token).sum(), {}

    return loss
