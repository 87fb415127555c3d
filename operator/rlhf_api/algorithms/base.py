"""Algorithm: its settings section, its graph, and its cross-field rules. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from ..base import Frozen, NonNegativeFloat, Positive, PositiveFloat
from ..graph import POLICY, REFERENCE, SEQUENCES, Compute, Generate, Graph, Infer, Node, Score, Train
from ..problems import Problem

if TYPE_CHECKING:
    from ..spec import Spec

Rules = Callable[["Spec", str, Any], Iterator[Problem]]
"""(spec, the settings' field such as `spec.ppo`, settings) -> problems."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of `rlhf_api.algorithms.ALGORITHMS`, or an object named in a manifest as `module:name`.

    `settings` is the pydantic model of the algorithm's own section, None if it has none; `graph` builds a job's
    dataflow graph from its spec and that section; `rules` yields cross-field problems; `usual` has what the
    experiment of its name sets of `spec`.
    """

    name: str
    settings: type[Frozen] | None
    graph: Callable[[Spec, Any], Graph]
    rules: Rules | None = None
    usual: Mapping[str, Any] = field(default_factory=dict, hash=False)


class PolicyGradient(Frozen):
    """Settings shared by all algorithms that sample responses; DAPO's parts combine with any of them."""

    epochs: Positive = 1
    """Passes over each step's responses."""
    minibatch_size: Positive = 64
    """Responses of one optimizer update, over all ranks."""
    balance_tokens: bool = False
    """The updates of a step have equally many response tokens, so each counts the same under lossAggregation token; in
    place of random responses."""
    clip_ratio: PositiveFloat = 0.2
    """The importance ratio is clipped to 1 - clipRatio ... 1 + clipRatio."""
    clip_ratio_high: PositiveFloat | None = None
    """Upper clip, 1 + clipRatioHigh, where it differs (DAPO's clip-higher: 0.28)."""
    dual_clip: float | None = Field(None, gt=1)
    """Bound of the loss of negative advantages, as a multiple of the advantage (dual-clip PPO: 3); above 1."""
    loss_aggregation: Literal["token", "sequence", "constant"] = "token"
    """Mean over all response tokens; mean over responses of their mean; or sum over tokens divided by responses x
    sampling.maxNewTokens."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Entropy bonus per nat of entropy of the policy's next-token distribution."""
    stop_ratio: float | None = Field(None, gt=1)
    """A step's remaining updates of the policy are skipped once the mean importance ratio of a minibatch is above this,
    or below its inverse."""
    kl_coefficient: NonNegativeFloat = 0.0
    """KL penalty per nat of divergence from the reference; 0: the job has no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the divergence of each token."""
    kl_in: Literal["reward", "loss"] = "reward"
    """The KL penalty is part of the token rewards, or of the loss."""
    kl_target: PositiveFloat | None = None
    """Adaptive KL: klCoefficient adapts so that the divergence approaches klTarget nats per response."""
    kl_horizon: Positive = 10000
    """Number of responses over which klCoefficient adapts to klTarget."""
    reference_ema: float | None = Field(None, ge=0, lt=1)
    """The reference is not a role but the moving average of the policy, with this decay per step."""
    overlong_filter: bool = False
    """Excludes responses cut off by the length limit from the loss (DAPO's overlong filter)."""
    overlong_buffer: int = Field(0, ge=0)
    """Number of tokens before sampling.maxNewTokens over which overlongPenalty rises from 0; 0: no penalty."""
    overlong_penalty: NonNegativeFloat = 1.0
    """Penalty on the score of a response of full length, linearly less within overlongBuffer."""
    dynamic_sampling: int = Field(0, ge=0)
    """Dynamic sampling: maximum number of rounds of fresh prompts that replace groups whose responses all have the same
    score; 0: such groups stay."""


def policy_gradient_rules(spec: Spec, where: str, settings: PolicyGradient) -> Iterator[Problem]:
    """Rules shared by all algorithms that sample responses."""
    responses = spec.data.prompts_per_step * spec.sampling.answers_per_prompt
    if settings.minibatch_size > responses:
        yield Problem(
            f"{where}.minibatchSize",
            f"a step has {responses} answers (data.promptsPerStep x sampling.answersPerPrompt); "
            f"use at most that; got {settings.minibatch_size}",
        )
    yield from _balanced(spec, where, settings, responses)
    high = settings.clip_ratio_high
    if high is not None and high < settings.clip_ratio < 1:  # from 1 on there is no lower bound
        yield Problem(
            f"{where}.clipRatioHigh", f"must be at least clipRatio ({settings.clip_ratio:g}); got {high:g}"
        )
    if settings.kl_coefficient and settings.kl_in == "loss" and settings.kl_estimator == "k1":
        yield Problem(
            f"{where}.klEstimator",
            "as a loss, k1 has an expected gradient of 0 and holds nothing back; use k2 or k3, or klIn reward; "
            "got 'k1'",
        )
    limit = spec.sampling.max_new_tokens
    if settings.overlong_buffer > limit:
        yield Problem(
            f"{where}.overlongBuffer",
            f"must be at most sampling.maxNewTokens ({limit}); got {settings.overlong_buffer}",
        )
    if settings.dynamic_sampling and spec.sampling.answers_per_prompt < 2:
        yield Problem(
            f"{where}.dynamicSampling",
            "compares the responses to a prompt: set sampling.answersPerPrompt to at least 2; got 1",
        )


def _balanced(spec: Spec, where: str, settings: PolicyGradient, responses: int) -> Iterator[Problem]:
    if not settings.balance_tokens or spec.replay.window:
        return
    sizes = (
        settings.minibatch_size,
        getattr(settings, "value_minibatch_size", None) or settings.minibatch_size,
    )
    if all(responses < 2 * size for size in sizes):
        message = f"a step is one update of {responses} responses; use a minibatchSize of at most {responses // 2}, "
        yield Problem(f"{where}.balanceTokens", f"{message}or remove this; got true")
    elif spec.replay.dynamic and settings.epochs == 1:
        yield Problem(
            f"{where}.balanceTokens",
            "replay.streamDataLoaderType dynamic trains on responses as they come, and there is no further epoch; use "
            "fixed, or remove this; got true",
        )


def group_rules(spec: Spec, where: str, settings: PolicyGradient) -> Iterator[Problem]:
    """Rules of algorithms whose baseline is the other responses to the same prompt."""
    yield from policy_gradient_rules(spec, where, settings)
    if spec.sampling.answers_per_prompt < 2:
        yield Problem(
            "spec.sampling.answersPerPrompt",
            f"{spec.algorithm} compares the responses to a prompt; use at least 2 (8 is usual); got 1",
        )


GROUPED = {"sampling": {"answersPerPrompt": 8}}
"""What algorithms with `group_rules` usually set."""


def is_one_update(spec: Spec, settings: PolicyGradient, minibatch: int) -> bool:
    """True if a step trains once, on all of its responses at once: those that are left over join the last minibatch."""
    responses = spec.data.prompts_per_step * spec.sampling.answers_per_prompt
    whole = responses <= minibatch if spec.replay.dynamic else responses < 2 * minibatch
    return settings.epochs == 1 and whole and not spec.replay.window


def experience(spec: Spec, settings: PolicyGradient) -> tuple[Node, ...]:
    """First nodes of every algorithm that samples responses: responses, their log-probabilities under policy and
    reference if needed, and scores.

    If a step is one update, the old log-probabilities are not computed: they equal those of the update itself.
    """
    one_update = is_one_update(spec, settings, settings.minibatch_size)
    penalty = settings.kl_coefficient > 0
    nodes: list[Node] = [Generate(rounds=settings.dynamic_sampling)]
    weighted = spec.rollout.level != "none"
    if not one_update or weighted or (penalty and settings.kl_in == "reward"):
        nodes.append(Infer(name="policy_logprobs", model=POLICY, writes=("logprobs",)))
    if weighted:
        nodes.append(
            Compute(
                name="importance",
                function="importance_weights",
                reads=("logprobs", "sampled_logprobs"),
                writes=("importance_weights",),
            )
        )
    if penalty:
        nodes.append(reference(spec, settings.reference_ema))
    if spec.reward.fine_grained:
        nodes.append(Score(writes=("token_scores",), per_token=True))
        nodes.append(
            Compute(name="scores", function="sum_scores", reads=("token_scores",), writes=("scores",))
        )
    else:
        nodes.append(Score())
    if settings.overlong_filter:
        nodes.append(Compute(name="mask", function="overlong_mask", reads=("finished",), writes=("mask",)))
    return tuple(nodes)


def reference(spec: Spec, average: float | None = None, output: str = "logprobs") -> Infer:
    """The reference's log-probabilities: of the policy's moving average, if there is one; of the policy with its
    adapter disabled, if it has one and no other reference is named; else of the reference role."""
    lora = spec.model.lora
    base = average is None and lora is not None and lora.policy is not None and spec.model.reference is None
    return Infer(
        name="reference_logprobs",
        model=POLICY if base or average is not None else REFERENCE,
        output=output,
        average=average,
        base=base,
        writes=("reference_logprobs",),
    )


def rewarded(settings: PolicyGradient) -> tuple[str, ...]:
    """Columns that the rewards are computed from."""
    in_reward = settings.kl_coefficient > 0 and settings.kl_in == "reward"
    return ("scores", *(("logprobs", "reference_logprobs") if in_reward else ()))


def train_policy(
    begin: tuple[Node, ...], settings: PolicyGradient, loss: str = "policy", from_step: int = 0
) -> Train:
    """The policy's training node: reads the old log-probabilities and the mask if `begin` writes them, and the
    reference if the KL penalty is part of the loss."""
    in_loss = settings.kl_coefficient > 0 and settings.kl_in == "loss"
    written = {column for node in begin for column in node.writes}
    reads = (
        SEQUENCES,
        "sampled_logprobs",
        *(column for column in ("logprobs", "mask", "importance_weights") if column in written),
        "advantages",
        *(("reference_logprobs",) if in_loss else ()),
    )
    return Train(
        name="train_policy",
        model=POLICY,
        loss=loss,
        output="logprobs_and_entropy_bonus" if settings.entropy_coefficient else "logprobs_and_entropy",
        reads=reads,
        minibatch_size=settings.minibatch_size,
        balance_tokens=settings.balance_tokens,
        epochs=settings.epochs,
        from_step=from_step,
        stop_ratio=settings.stop_ratio,
    )


def grouped(function: str, loss: str = "policy") -> Callable[[Spec, PolicyGradient], Graph]:
    """Graph of the algorithms without a critic and with one advantage per response: its reward compared with the
    group's."""

    def graph(spec: Spec, settings: PolicyGradient) -> Graph:
        rewards = Compute(
            name="rewards",
            function="response_rewards",
            reads=rewarded(settings),
            writes=("response_rewards",),
        )
        advantages = Compute(
            name="advantages",
            function=function,
            reads=("response_rewards", "position"),
            writes=("advantages",),
        )
        begin = experience(spec, settings)
        return Graph((*begin, rewards, advantages, train_policy(begin, settings, loss)))

    return graph
