"""Losses of the training nodes: each turns a minibatch's columns into weighted sums over its micro-batches."""

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf_api.algorithms import teacher_kl, teachers_of
from rlhf_api.algorithms.distillation import Distillation
from rlhf_api.algorithms.dpo import DPO
from rlhf_api.algorithms.kto import KTO
from rlhf_api.algorithms.policy_gradient import PolicyGradient
from rlhf_api.algorithms.ppo import PPO
from rlhf_api.algorithms.reward import RewardModel
from rlhf_api.graph import GIVEN, LABEL, MARGIN, REFERENCE_TOP, STEP_LABEL, TEACHER
from rlhf_api.sections.common import CommonSpec

from ..maths.agreement import agreement, comparable
from ..maths.divergence import top_divergence
from ..maths.kl import kl_estimate, token_kl_k3
from ..maths.losses import (
    centering_loss,
    clipped_surrogate,
    clipped_value_loss,
    clipped_weight_loss,
    outside_clip,
    pairwise_loss,
    ratio,
    sequence_ratio,
    token_weights,
)
from ..maths.preference import dpo_loss, implicit_rewards, ipo_loss, kto_loss, odds_ratio_loss
from ..maths.steps import step_likelihood_loss
from ..maths.values import normalize
from ..tensors.batches import Loss, MicroBatch
from ..tensors.columns import Columns
from ..tensors.packed import to_device
from ..tensors.ragged import sequence_sums, to_tokens
from ..tensors.top_tokens import top_logprobs_of
from .compute import entropy_coefficient, kl_coefficient, value_moments
from .context import OpContext

HALF = 0.5
"""Probability above which a step counts as right."""
Named = dict[str, Tensor]
Ratios = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(log-probabilities, those before the step, rows of the micro-batch, mask) -> importance ratio of each token."""
PerToken = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(importance ratio, log-probability, advantage) -> loss of each token."""


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
    are in units of beta x nats, or of beta x nats per token without a reference."""
    settings, pairs = ctx.settings, len(columns) // 2

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
        }

    return loss


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


def policy(columns: Columns, ctx: OpContext[PolicyGradient]) -> Loss:
    """Clipped surrogate of each token's importance ratio, with the settings' KL penalty and entropy bonus."""
    return _policy_gradient(columns, ctx, _of_tokens, _surrogate(ctx))


def gspo(columns: Columns, ctx: OpContext[PolicyGradient]) -> Loss:
    """Clipped surrogate of the sequence-level ratio (GSPO, Zheng et al. 2025, arXiv:2507.18071, eq. 5), with the
    settings' KL penalty and entropy bonus.
    """

    def of_sequences(logprobs: Tensor, old: Tensor, rows: Tensor, mask: Tensor | None) -> Tensor:
        return sequence_ratio(logprobs, old, columns.lengths[rows], mask)

    return _policy_gradient(columns, ctx, of_sequences, _surrogate(ctx))


def cispo(columns: Columns, ctx: OpContext[PolicyGradient]) -> Loss:
    """Log-probability of each token, weighed by its clipped importance ratio and its advantage, with the settings' KL
    penalty and entropy bonus (MiniMax 2025, arXiv:2506.13585, eq. 4)."""
    low, high = _clip(ctx)

    def per_token(r: Tensor, logprobs: Tensor, advantages: Tensor) -> Tensor:
        return clipped_weight_loss(r, logprobs, advantages, low, high)

    return _policy_gradient(columns, ctx, _of_tokens, per_token)


def value(columns: Columns, ctx: OpContext[PPO]) -> Loss:
    """Clipped squared error of the critic against the returns. If values are normalised, in units of the new moments;
    the clip is around what the critic said, whatever units it was trained with then."""
    settings = ctx.settings
    weights = _weights(columns, ctx)
    old_values, all_returns = columns["values"], columns["returns"]
    if settings.normalize_values:
        moments = value_moments(ctx)
        has_outputs = (
            "critic_outputs" in columns
        )  # which `gae` writes; another operation may give values in units of reward
        old_values = columns["critic_outputs"] if has_outputs else normalize(old_values, moments)
        all_returns = normalize(all_returns, moments)

    def loss(values: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        index, device = micro.response_index, values.device
        old, returns = to_device(old_values[index], device), to_device(all_returns[index], device)
        per_token = clipped_value_loss(values, old, returns, settings.clip_value or None)
        return (to_device(weights[index], device) * per_token).sum(), {}

    return loss


def _clip(ctx: OpContext[PolicyGradient]) -> tuple[float, float]:
    low, high = ctx.settings.clip_ratio, ctx.settings.clip_ratio_high
    return low, low if high is None else high


def _of_tokens(logprobs: Tensor, old: Tensor, _rows: Tensor, _mask: Tensor | None) -> Tensor:
    return ratio(logprobs, old)


def _surrogate(ctx: OpContext[PolicyGradient]) -> PerToken:
    low, high = _clip(ctx)

    def per_token(r: Tensor, _logprobs: Tensor, advantages: Tensor) -> Tensor:
        return clipped_surrogate(r, advantages, low, high, ctx.settings.dual_clip)

    return per_token


def _policy_gradient(
    columns: Columns, ctx: OpContext[PolicyGradient], ratios: Ratios, per_token: PerToken
) -> Loss:
    settings = ctx.settings
    weights = _weights(columns, ctx)
    # Weights of the metrics, whatever the loss's aggregation: over all tokens where the mask counts none.
    counted = None if columns.mask is None or not bool(columns.mask.any()) else columns.mask
    shares = token_weights(columns.lengths, "token", counted)
    low, high = _clip(ctx)
    penalised = settings.kl_penalty == "loss" and "reference_logprobs" in columns
    tokens = max(1, int(columns.lengths.sum()))
    # If a step is one update, the policy in it is the policy before it, and is compared with the sampler here.
    keep = ctx.spec.rollout.in_flight == "keep"
    compared = None if "logprobs" in columns else comparable(columns["versions"], ctx.step, keep=keep)
    given = to_tokens(columns[GIVEN] > 0, columns.lengths) if GIVEN in columns else None
    if compared is not None and given is not None:
        compared = compared & ~given

    taught = {name: of / of.sum() for name, of in tokens_of_teachers(columns, ctx.spec).items()}

    def loss(output: Tensor, micro: MicroBatch) -> tuple[Tensor, Named]:
        index, device = micro.response_index, output.device
        logprobs, entropy = (output[:, :2] if REFERENCE_TOP in columns else output).unbind(-1)
        weight, share = to_device(weights[index], device), to_device(shares[index], device)
        if "importance_weights" in columns:
            corrected = weight * to_device(columns["importance_weights"][index], device)
        else:
            corrected = weight
        if "entropy_mask" in columns:
            corrected = corrected * to_device(columns["entropy_mask"][index], device)
        if "clip_cov" in columns:
            corrected = corrected * ~to_device(columns["clip_cov"][index], device)

        def column(name: str) -> Tensor:
            return to_device(columns[name][index], device)

        def mean_kl(kl: Tensor) -> Named:
            of_teachers = {
                name: (kl * to_device(share[index], device)).sum() for name, share in taught.items()
            }
            return {"kl_mean": kl.sum() / tokens, **of_teachers}

        new = logprobs.detach()
        old = column("logprobs") if compared is None else new
        if given is not None:  # of which nobody sampled a token
            old = torch.where(to_device(given[index], device), new, old)
        mask = None if columns.mask is None else to_device(columns.mask[index], device)
        r = ratios(logprobs, old, micro.rows, mask)
        total = (corrected * per_token(r, logprobs, column("advantages"))).sum()
        if "kl_cov" in columns:  # Cui et al. 2025 (arXiv:2505.22617), KL-Cov, with a coefficient of 1
            total = total + (corrected * column("kl_cov") * token_kl_k3(old, logprobs)).sum()
        statistics = {
            "clip_fraction": (share * outside_clip(r.detach(), low, high)).sum(),
            "update_kl": (share * token_kl_k3(old, new)).sum(),
            "entropy": entropy.detach().sum() / tokens,
            "ratio_mean": (share * r.detach()).sum(),
        }
        if REFERENCE_TOP in columns:
            teacher = to_device(top_logprobs_of(columns[REFERENCE_TOP][index]), device)
            divergence = top_divergence(output[:, 2:], teacher, _beta(ctx))
            total = total + kl_coefficient(ctx) * (weight * divergence).sum()
            statistics |= mean_kl(top_divergence(output[:, 2:].detach(), teacher, 1.0))
        if penalised:
            kl = kl_estimate(logprobs, column("reference_logprobs"), settings.kl_estimator)
            if settings.kl_corrected:
                kl = ratio(logprobs, old) * kl
            total = total + kl_coefficient(ctx) * (weight * kl).sum()
        if settings.entropy_coefficient:
            total = total - entropy_coefficient(ctx) * (weight * entropy).sum()
        if compared is not None:
            same = compared[index].nonzero()[:, 0]
            if bool(compared.any()):
                sampled = to_device(columns["sampled_logprobs"][index[same]], device)
                statistics |= agreement(new[to_device(same, device)], sampled, int(compared.sum()))
            if "reference_logprobs" in columns:
                statistics |= mean_kl(new - column("reference_logprobs"))
        return total, statistics

    return loss


def tokens_of_teachers(columns: Columns, spec: CommonSpec) -> dict[str, Tensor]:
    """Tokens of the responses of each teacher that has any, bool [A], by the name of its divergence in the metrics."""
    if TEACHER not in columns:
        return {}
    numbers, names = to_tokens(columns[TEACHER], columns.lengths), enumerate(teachers_of(spec))
    tokens = {teacher_kl(teacher): numbers == number for number, teacher in names}
    return {name: of for name, of in tokens.items() if bool(of.any())}


def _beta(ctx: OpContext[PolicyGradient]) -> float:
    return ctx.settings.beta if isinstance(ctx.settings, Distillation) else 1.0


def _weights(columns: Columns, ctx: OpContext[PolicyGradient]) -> Tensor:
    longest = ctx.spec.longest_response
    return token_weights(columns.lengths, ctx.settings.loss_aggregation, columns.mask, constant=longest)
