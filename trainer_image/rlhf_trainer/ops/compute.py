"""Compute operations: token rewards and advantages from the columns of a batch. Pure except for running state."""

from dataclasses import asdict

import torch
from torch import Tensor

from rlhf_api.algorithms.distillation import Distillation
from rlhf_api.algorithms.each_reward import weighted_columns
from rlhf_api.algorithms.policy_gradient import (
    CovarianceControl,
    PolicyGradient,
    SampledResponses,
    Standardized,
)
from rlhf_api.algorithms.ppo import PPO
from rlhf_api.algorithms.reinforce_pp import ReinforcePP
from rlhf_api.graph import LABEL, PREFERENCE

from ..maths.advantages import (
    distillation_advantages,
    generalized_advantages,
    highest,
    reinforce_pp_advantages,
    whiten,
)
from ..maths.covariance import draw_covariant, token_covariances
from ..maths.groups import (
    batch_standardized,
    best_and_worst,
    each_standardized,
    group_centered,
    group_standardized,
    leave_one_out,
)
from ..maths.importance import importance_weights
from ..maths.kl import kl_estimate, token_rewards
from ..maths.preference import mismatched_divergence
from ..maths.rewards import overlong_penalty
from ..maths.values import Moments, denormalize, update_moments
from ..tensors.columns import Columns
from ..tensors.ragged import sequence_sums, to_tokens
from .context import OpContext


def kl_coefficient(ctx: OpContext[PolicyGradient]) -> float:
    """The present coefficient of the KL penalty: adaptive if the job has a KL target, beginning with that of the
    settings, also where a checkpoint's began with another one."""
    given = ctx.settings.kl_coefficient
    began = ctx.state.get("kl_coefficient_given", given)
    adapts = getattr(ctx.settings, "kl_target", None) is not None and began == given
    return float(ctx.state.get("kl_coefficient", given) if adapts else given)


def entropy_coefficient(ctx: OpContext[PolicyGradient]) -> float:
    """The present coefficient of the entropy bonus: that of the settings, or with a target the adaptive one, which is 0
    after a step whose entropy was above it."""
    if ctx.settings.entropy_target is None:
        return ctx.settings.entropy_coefficient
    return float(ctx.state.get("entropy_coefficient", 0.0)) if ctx.state.get("entropy_is_low") else 0.0


def overlong_mask(columns: Columns, _ctx: OpContext) -> Columns:
    """`mask`: false for every token of a response that the length limit cut off (DAPO's overlong filter)."""
    return columns.with_tokens(mask=to_tokens(columns["finished"], columns.lengths))


def entropy_mask(columns: Columns, ctx: OpContext[PolicyGradient]) -> Columns:
    """`entropy_mask`: true for the share of tokens whose entropy is highest, among those that `mask` counts."""
    mask = highest(columns["entropies"], ctx.settings.top_entropy, mask=columns.mask)
    return columns.with_tokens(entropy_mask=mask)


def clip_cov(columns: Columns, ctx: OpContext[CovarianceControl]) -> Columns:
    """`clip_cov`: true for the share of tokens, drawn among those of high covariance, that have no policy loss."""
    covariances = token_covariances(columns["logprobs"], columns["advantages"], columns.mask)
    seed = ctx.spec.seed * 1_000_003 + ctx.step
    drawn = draw_covariant(covariances, ctx.settings.clip_cov, seed, columns.mask)
    return columns.with_tokens(clip_cov=drawn)


def kl_cov(columns: Columns, ctx: OpContext[CovarianceControl]) -> Columns:
    """`kl_cov`: true for the share of tokens whose covariance is highest, which have a penalty."""
    covariances = token_covariances(columns["logprobs"], columns["advantages"], columns.mask)
    return columns.with_tokens(kl_cov=highest(covariances, ctx.settings.kl_cov, columns.mask))


def importance_weight_column(columns: Columns, ctx: OpContext) -> Columns:
    """`importance_weights`: per-token weights of the loss, p / p_sampler with p the policy before the step, capped and
    masked.
    """
    rollout = ctx.spec.rollout
    assert rollout.level != "none", "the graph has this node only with a correction"
    weights = importance_weights(
        columns["logprobs"],
        columns["sampled_logprobs"],
        columns.lengths,
        rollout.level,
        cap=rollout.importance_cap,
        mask=rollout.importance_mask,
    )
    return columns.with_tokens(importance_weights=weights)


def sum_scores(columns: Columns, _ctx: OpContext) -> Columns:
    """`scores`: the sum of each response's token scores."""
    return columns.with_rows(scores=sequence_sums(columns["token_scores"], columns.lengths))


def environment_scores(columns: Columns, _ctx: OpContext) -> Columns:
    """`scores`: the rewards of each episode, plus the score of the reward role if the job has one; and `token_scores`,
    the same by token: a turn's reward at its last token, what is of the whole episode at the last token of all."""
    scores = columns["environment_reward"]
    if "reward_scores" in columns:
        scores = scores + columns["reward_scores"]
    turns = columns.tokens.get("turn_rewards", torch.zeros_like(columns["sampled_logprobs"]))
    at_end = scores - sequence_sums(turns, columns.lengths)
    ends = columns.lengths.cumsum(0) - 1
    return columns.with_tokens(token_scores=turns.index_add(0, ends, at_end)).with_rows(scores=scores)


def token_reward_column(columns: Columns, ctx: OpContext[PolicyGradient]) -> Columns:
    """`token_rewards`: the KL penalty at each token, the response's score at its last; in units of reward."""
    return _token_rewards(columns, ctx, centered=False)


def centered_token_reward_column(columns: Columns, ctx: OpContext[PolicyGradient]) -> Columns:
    """`token_rewards`, after each score lost the mean score of its group."""
    return _token_rewards(columns, ctx, centered=True)


def _token_rewards(columns: Columns, ctx: OpContext[PolicyGradient], *, centered: bool) -> Columns:
    whole, fine_grained = _scores(columns, ctx), columns.tokens.get("token_scores")
    # The last token gets the part of the reward that is not from token scores.
    scores = whole if fine_grained is None else whole - columns["scores"]
    if centered:
        scores = scores - (whole - group_centered(whole, columns["position"]))
    rewards = token_rewards(
        _kl_in_reward(columns, ctx),
        scores,
        columns.lengths,
        kl_coefficient(ctx),
        fine_grained=fine_grained,
        mask=columns.mask,
    )
    return columns.with_tokens(token_rewards=rewards)


def response_reward_column(columns: Columns, ctx: OpContext[PolicyGradient]) -> Columns:
    """`response_rewards`: the score minus the response's summed KL penalty; in units of reward."""
    kl = sequence_sums(_kl_in_reward(columns, ctx), columns.lengths, columns.mask)
    return columns.with_rows(response_rewards=_scores(columns, ctx) - kl_coefficient(ctx) * kl)


def gae(columns: Columns, ctx: OpContext[PPO]) -> Columns:
    """`advantages` (whitened where the settings say so) and `returns` by generalized advantage estimation.

    With value normalisation, `values` are denormalised to units of reward here, and the running moments are updated
    with the returns; `critic_outputs` are the values as the critic gave them.
    """
    settings, values = ctx.settings, columns["values"]
    if settings.normalize_values:
        columns = columns.with_tokens(critic_outputs=values)
        values = denormalize(values, value_moments(ctx))
    advantages, returns = generalized_advantages(
        columns["token_rewards"], values, columns.lengths, settings.gamma, settings.gae_lambda
    )
    if settings.normalize_values:
        ctx.state["values"] = asdict(update_moments(value_moments(ctx), returns, mask=columns.mask))
    if settings.whiten_advantages:
        advantages = whiten(advantages, mask=columns.mask)
    return columns.with_tokens(values=values, advantages=advantages, returns=returns)


def value_moments(ctx: OpContext) -> Moments:
    """Running moments of the returns, from `gae` on with those of the step."""
    return Moments(**ctx.state.get("values", {}))


def grpo(columns: Columns, _ctx: OpContext) -> Columns:
    """`advantages`: rewards standardised within the group (GRPO)."""
    return _of_responses(columns, group_standardized(columns["response_rewards"], columns["position"]))


def grpo_batch(columns: Columns, _ctx: OpContext) -> Columns:
    """`advantages`: rewards minus the group's mean, in standard deviations of all of the batch."""
    return _of_responses(columns, batch_standardized(columns["response_rewards"], columns["position"]))


def gdpo(columns: Columns, ctx: OpContext[Standardized]) -> Columns:
    """`advantages`: the weighted sum of rewards that are each standardised within the group, in standard deviations of
    that sum over the batch (GDPO). The overlong penalty is one of them."""
    weighted = [(weight, columns[name]) for name, weight in weighted_columns(ctx.spec).items()]
    if ctx.settings.overlong_buffer:
        weighted.append((ctx.settings.overlong_penalty, _overlong_penalties(columns, ctx)))
    standardize = group_standardized if ctx.settings.standard_deviation == "group" else batch_standardized
    return _of_responses(columns, each_standardized(weighted, columns["position"], standardize))


def group_mean(columns: Columns, _ctx: OpContext) -> Columns:
    """`advantages`: rewards minus the group's mean (Dr. GRPO)."""
    return _of_responses(columns, group_centered(columns["response_rewards"], columns["position"]))


def rloo(columns: Columns, _ctx: OpContext) -> Columns:
    """`advantages`: rewards minus the mean of the group's other responses (RLOO)."""
    return _of_responses(columns, leave_one_out(columns["response_rewards"], columns["position"]))


def reinforce_pp(columns: Columns, ctx: OpContext[ReinforcePP]) -> Columns:
    """`advantages`: returns-to-go, whitened over all tokens of the batch (REINFORCE++)."""
    advantages = reinforce_pp_advantages(
        columns["token_rewards"], columns.lengths, ctx.settings.gamma, mask=columns.mask
    )
    return columns.with_tokens(advantages=advantages)


def distillation(columns: Columns, ctx: OpContext[Distillation]) -> Columns:
    """`advantages`: each token's log-probability under the teacher, less that under the policy; plus the response's
    score less the mean of its group, where there are scores."""
    advantages = distillation_advantages(
        _kl_in_reward(columns, ctx), columns.lengths, kl_coefficient(ctx), ctx.settings.gamma
    )
    if "scores" in columns:
        centered = group_centered(_scores(columns, ctx), columns["position"])
        advantages = advantages + to_tokens(centered, columns.lengths)
    return columns.with_tokens(advantages=advantages)


def mismatched_divergence_column(columns: Columns, _ctx: OpContext) -> Columns:
    """`kl_baseline`: of every row the same, KTO's estimate of the divergence from the rows without a label."""
    log_ratios = sequence_sums(columns["logprobs"] - columns["reference_logprobs"], columns.lengths)
    baseline = mismatched_divergence(log_ratios[columns[LABEL] == 0])
    return columns.with_rows(kl_baseline=baseline.expand(len(columns)))


def preference_column(columns: Columns, ctx: OpContext[SampledResponses]) -> Columns:
    """`preference`: of each group the response with the highest score and that with the lowest are a pair, unless all
    are equal; among equal ones it is drawn."""
    draw = torch.Generator().manual_seed(ctx.spec.seed * 1_000_003 + ctx.step)
    order = torch.randperm(len(columns), generator=draw)
    choice = best_and_worst(_scores(columns, ctx), columns["position"], order)
    return columns.with_rows(**{PREFERENCE: choice})


def _of_responses(columns: Columns, advantages: Tensor) -> Columns:
    return columns.with_tokens(advantages=to_tokens(advantages, columns.lengths))


def _scores(columns: Columns, ctx: OpContext[SampledResponses]) -> Tensor:
    """Scores plus DAPO's soft overlong penalty, which is not positive: [N] in units of reward."""
    settings, scores = ctx.settings, columns["scores"]
    if not settings.overlong_buffer:
        return scores
    return torch.add(scores, _overlong_penalties(columns, ctx), alpha=settings.overlong_penalty)


def _overlong_penalties(columns: Columns, ctx: OpContext[SampledResponses]) -> Tensor:
    """The soft overlong penalty of each response before its weight: [N], from -1 to 0."""
    longest = ctx.spec.sampling.max_new_tokens
    return overlong_penalty(columns.sequences.after_lengths, longest, ctx.settings.overlong_buffer)


def _kl_in_reward(columns: Columns, ctx: OpContext[PolicyGradient]) -> Tensor:
    """KL of each token in nats if the penalty is part of the rewards, else 0: float [A]."""
    if ctx.settings.kl_penalty != "reward" or "reference_logprobs" not in columns:
        return torch.zeros(int(columns.lengths.sum()))
    return kl_estimate(columns["logprobs"], columns["reference_logprobs"], ctx.settings.kl_estimator)
