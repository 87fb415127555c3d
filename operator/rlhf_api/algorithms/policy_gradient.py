"""Settings and rules that all algorithms with sampled responses share."""

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ..errors.problem import Problem
from ..field_types import Fraction, Frozen, NonNegativeFloat, Positive, PositiveFloat
from ..graph import minibatch_count
from ..sections.common import CommonSpec


class SampledResponses(Frozen):
    """Settings shared by all algorithms that sample responses."""

    epochs: Positive = 1
    """Passes over each step's responses."""
    minibatch_size: Positive = 64
    """Responses of one optimizer update, over all ranks. If a step has no multiple of it, its updates have
    equally many, nearest to this."""
    overlong_buffer: int = Field(0, ge=0)
    """Number of tokens before sampling.maxNewTokens over which overlongPenalty rises from 0; 0: no penalty."""
    overlong_penalty: NonNegativeFloat = 1.0
    """Penalty on the score of a response of full length, linearly less within overlongBuffer."""
    dynamic_sampling: int = Field(0, ge=0)
    """Maximum number of rounds of fresh prompts that replace groups whose responses all have the same score; 0: such
    groups stay."""


class PolicyGradient(SampledResponses):
    """Settings shared by all algorithms whose loss weighs tokens by advantages; DAPO's parts combine with any of
    them."""

    balance_tokens: bool = False
    """The updates of a step have equally many response tokens, in place of random responses."""
    clip_ratio: PositiveFloat = 0.2
    """The importance ratio is clipped to 1 - clipRatio ... 1 + clipRatio."""
    clip_ratio_high: PositiveFloat | None = None
    """Upper clip, 1 + clipRatioHigh, where it differs (DAPO's clip-higher: 0.28)."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound of the loss of negative advantages, as a multiple of the advantage (dual-clip PPO: 3); above 1."""
    loss_aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all response tokens; over responses of their mean; or sum over tokens divided by responses x
    sampling.maxNewTokens."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Entropy bonus per nat of entropy of the policy's next-token distribution."""
    entropy_target: PositiveFloat | None = None
    """Adaptive entropy bonus: its coefficient changes from 0 by entropyCoefficient a step; it acts after steps of at
    most so many nats per token."""
    top_entropy: float = Field(1.0, gt=0, le=1)
    """Share of a step's response tokens, of the highest entropy, that alone have a policy loss; 1: all."""
    stop_ratio: float | None = Field(None, gt=1)
    """A step's remaining updates of the policy are skipped once the mean importance ratio of a minibatch is above this,
    or below its inverse."""
    kl_coefficient: NonNegativeFloat = 0.0
    """KL penalty per nat of divergence from the reference; 0: the job has no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the divergence of each token."""
    kl_in: Literal["reward", "loss"] = "reward"
    """The KL penalty is part of the token rewards, or of the loss."""
    kl_corrected: bool = False
    """Weighs each token's penalty in the loss by its importance ratio, which makes its gradient that of the
    divergence."""
    kl_target: PositiveFloat | None = None
    """Adaptive KL: klCoefficient adapts so that the divergence approaches klTarget nats per response."""
    kl_horizon: Positive = 10000
    """Number of responses over which klCoefficient adapts to klTarget."""
    reference_ema: float | None = Field(None, ge=0, lt=1)
    """The reference is not a role but the moving average of the policy, with this decay per step."""
    overlong_filter: bool = False
    """Excludes responses cut off by the length limit from the loss (DAPO's overlong filter)."""

    @property
    def kl_penalty(self) -> Literal["reward", "loss"] | None:
        """The part that has the KL penalty, reward or loss; None without a penalty."""
        return self.kl_in if self.kl_coefficient > 0 else None


class Standardized(PolicyGradient):
    """Settings of algorithms whose advantages are divided by a standard deviation of the rewards."""

    standard_deviation: Literal["group", "batch"] = "group"
    """Rewards over which the standard deviation is taken: of the responses to the prompt, or of the step."""
    normalize: Literal["sum", "each"] = "sum"
    """The weighted sum of several rewards is normalised; or each one, and their weighted sum over the step (GDPO)."""


class CovarianceControl(PolicyGradient):
    """Settings that bound the tokens whose log-probability and advantage go together, which take entropy away (Cui et
    al. 2025, arXiv:2505.22617)."""

    clip_cov: Fraction = 0.0
    """Clip-Cov: share of tokens, drawn among those of high covariance, without a policy loss; 0: off."""
    kl_cov: Fraction = 0.0
    """KL-Cov: share of tokens, of highest covariance, with a KL penalty to the old policy; 0: off."""


def sampled_rules(spec: CommonSpec, where: str, settings: SampledResponses) -> Iterator[Problem]:
    """Rules shared by all algorithms that sample responses."""
    responses = spec.data.prompts_per_step * spec.sampling.responses_per_prompt
    if settings.minibatch_size > responses:
        yield Problem(
            f"{where}.minibatchSize",
            f"a step has {responses} responses (data.promptsPerStep x sampling.responsesPerPrompt); "
            f"use at most that; got {settings.minibatch_size}",
        )
    limit = spec.sampling.max_new_tokens
    if settings.overlong_buffer > limit:
        yield Problem(
            f"{where}.overlongBuffer",
            f"must be at most sampling.maxNewTokens ({limit}); got {settings.overlong_buffer}",
        )
    if settings.dynamic_sampling and spec.sampling.responses_per_prompt < 2:
        yield Problem(
            f"{where}.dynamicSampling",
            "compares the responses to a prompt: set sampling.responsesPerPrompt to at least 2; got 1",
        )


def policy_gradient_rules(spec: CommonSpec, where: str, settings: PolicyGradient) -> Iterator[Problem]:
    """Rules shared by all algorithms whose loss weighs tokens by advantages."""
    yield from sampled_rules(spec, where, settings)
    responses = spec.data.prompts_per_step * spec.sampling.responses_per_prompt
    yield from _balanced(spec, where, settings, responses)
    high = settings.clip_ratio_high
    if high is not None and high < settings.clip_ratio < 1:  # from 1 on there is no lower bound
        yield Problem(
            f"{where}.clipRatioHigh", f"must be at least clipRatio ({settings.clip_ratio:g}); got {high:g}"
        )
    estimated = settings.kl_in == settings.kl_penalty == "loss"
    if estimated and settings.kl_estimator == "k1" and not settings.kl_corrected:
        yield Problem(
            f"{where}.klEstimator",
            "as a loss, k1 has an expected gradient of 0 and holds nothing back; use k2 or k3, klCorrected, or klIn "
            "reward; got 'k1'",
        )
    if estimated and settings.kl_corrected and settings.kl_estimator == "k2":
        yield Problem(
            f"{where}.klCorrected",
            "k2 has the gradient of the divergence without a ratio, and another with one; use k1 or k3; got true",
        )


def _balanced(spec: CommonSpec, where: str, settings: PolicyGradient, responses: int) -> Iterator[Problem]:
    if not settings.balance_tokens or spec.replay.window:
        return
    sizes = (
        settings.minibatch_size,
        getattr(settings, "value_minibatch_size", None) or settings.minibatch_size,
    )
    if all(minibatch_count(responses, size) == 1 for size in sizes):
        message = f"a step is one update of {responses} responses; use a minibatchSize of at most {responses // 2}, "
        yield Problem(f"{where}.balanceTokens", f"{message}or remove this; got true")
    elif spec.replay.dynamic and settings.epochs == 1:
        yield Problem(
            f"{where}.balanceTokens",
            "replay.streamDataLoaderType dynamic trains on responses as they come, and there is no further epoch; use "
            "fixed, or remove this; got true",
        )


def group_rules(spec: CommonSpec, where: str, settings: PolicyGradient) -> Iterator[Problem]:
    """Rules of algorithms whose baseline is the other responses to the same prompt."""
    yield from policy_gradient_rules(spec, where, settings)
    yield from compared_rules(spec)


def compared_rules(spec: CommonSpec) -> Iterator[Problem]:
    """Rules of algorithms that compare the responses to a prompt."""
    if spec.sampling.responses_per_prompt < 2:
        yield Problem(
            "spec.sampling.responsesPerPrompt",
            f"{spec.algorithm} compares the responses to a prompt; use at least 2 (8 is usual); got 1",
        )


GROUPED = {"sampling": {"responsesPerPrompt": 8}}
"""Usual settings of algorithms with `group_rules`."""


def is_one_update(spec: CommonSpec, settings: PolicyGradient, minibatch: int) -> bool:
    """True if a step trains once, on all of its responses at once."""
    responses = spec.data.prompts_per_step * spec.sampling.responses_per_prompt
    whole = responses <= minibatch if spec.replay.dynamic else minibatch_count(responses, minibatch) == 1
    return settings.epochs == 1 and whole and not spec.replay.window
