"""Graph nodes that algorithms with sampled responses share: the experience, the reference, the policy's training."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..graph import (
    ENVIRONMENT_REWARD,
    POLICY,
    REFERENCE,
    REFERENCE_COLUMNS,
    SEQUENCES,
    Compute,
    Generate,
    Graph,
    Infer,
    Node,
    Score,
    Train,
)
from ..sections.common import CommonSpec
from .each_reward import normalizes_each, role_columns, weighted_columns
from .policy_gradient import CovarianceControl, PolicyGradient, Standardized, is_one_update


def experience(
    spec: CommonSpec,
    settings: PolicyGradient,
    *,
    scored: bool = True,
    reference_node: Infer | None = None,
    source: Generate | None = None,
) -> tuple[Node, ...]:
    """First nodes of every algorithm that samples responses: responses, their log-probabilities under policy and
    reference if needed, and scores, unless nothing is to score them. `reference_node` is in the place of `reference`,
    `source` in that of the usual one.

    If a step is one update, the old log-probabilities are not computed: they equal those of the update itself.
    """
    one_update = is_one_update(spec, settings, settings.minibatch_size)
    nodes: list[Node] = [source or Generate(rounds=settings.dynamic_sampling)]
    weighted = spec.rollout.level != "none"
    if not one_update or weighted or settings.kl_penalty == "reward" or _has_covariances(settings):
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
    if settings.kl_penalty:
        nodes.append(reference_node or reference(spec, settings.reference_ema))
    nodes += scores(spec, tuple(role_columns(spec)) if normalizes_each(settings) else ()) if scored else ()
    if settings.overlong_filter:
        nodes.append(Compute(name="mask", function="overlong_mask", reads=("finished",), writes=("mask",)))
    nodes += _entropy_mask(settings)
    return tuple(add_environment(nodes, spec))


def add_environment(nodes: Iterable[Node], spec: CommonSpec) -> Iterator[Node]:
    """The nodes as they are in this job: with an environment, whose rewards come with the responses, scores are made of
    them, together with the reward role's if the job has one."""
    for node in nodes:
        if spec.environment is not None and isinstance(node, Generate):
            yield replace(node, writes=(*node.writes, ENVIRONMENT_REWARD))
        elif spec.environment is not None and isinstance(node, Score):
            reads: tuple[str, ...] = (ENVIRONMENT_REWARD,)
            if spec.has_reward:
                yield replace(node, writes=("reward_scores", *node.writes[1:]))
                reads = (*reads, "reward_scores")
            writes = ("token_scores", "scores")
            yield Compute(name="environment", function="environment_scores", reads=reads, writes=writes)
        else:
            yield node


def _entropy_mask(settings: PolicyGradient) -> Iterator[Node]:
    """Nodes that write `entropy_mask`, by entropies of the policy before the step."""
    if settings.top_entropy < 1:
        reads = ("entropies", "mask") if settings.overlong_filter else ("entropies",)
        yield Infer(name="policy_entropies", model=POLICY, output="entropies", writes=("entropies",))
        yield Compute(name="top_entropy", function="entropy_mask", reads=reads, writes=("entropy_mask",))


def _has_covariances(settings: PolicyGradient) -> bool:
    return isinstance(settings, CovarianceControl) and max(settings.clip_cov, settings.kl_cov) > 0


def covariances(settings: PolicyGradient, begin: tuple[Node, ...]) -> tuple[Node, ...]:
    """Nodes after the advantages that write `clip_cov` and `kl_cov`, by log-probabilities of the policy before the
    step."""
    if not isinstance(settings, CovarianceControl):
        return ()
    mask = tuple(column for node in begin for column in node.writes if column == "mask")
    reads = ("logprobs", "advantages", *mask)
    shares = (("clip_cov", settings.clip_cov), ("kl_cov", settings.kl_cov))
    return tuple(
        Compute(name=name, function=name, reads=reads, writes=(name,)) for name, share in shares if share
    )


def scores(spec: CommonSpec, each: tuple[str, ...] = ()) -> Iterator[Node]:
    """Nodes that write `scores`; `token_scores` too, where each is a sum of rewards at single tokens; and `each`, the
    columns of single rewards."""
    if spec.reward.fine_grained and spec.environment is None:  # which is refused
        yield Score(writes=("token_scores", *each), per_token=True)
        yield Compute(name="scores", function="sum_scores", reads=("token_scores",), writes=("scores",))
    else:
        yield Score(writes=("scores", *each))


def reference(spec: CommonSpec, average: float | None = None, output: str = "logprobs") -> Infer:
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
    compared = ("logprobs", "reference_logprobs") if settings.kl_penalty == "reward" else ()
    return ("scores", *compared)


def train_policy(
    begin: tuple[Node, ...], settings: PolicyGradient, loss: str = "policy", from_step: int = 0
) -> Train:
    """The policy's training node: reads the old log-probabilities and the mask if `begin` writes them, and the
    reference if the KL penalty is part of the loss."""
    written = {column for node in begin for column in node.writes}
    reads = (
        SEQUENCES,
        "sampled_logprobs",
        *(
            column
            for column in ("logprobs", "mask", "importance_weights", "entropy_mask", "clip_cov", "kl_cov")
            if column in written
        ),
        "advantages",
        *(column for column in REFERENCE_COLUMNS if column in written and settings.kl_penalty == "loss"),
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


def grouped(function: str, loss: str = "policy") -> Callable[[CommonSpec, PolicyGradient], Graph]:
    """Graph of the algorithms without a critic and with one advantage per response: its reward compared with the
    group's."""

    def graph(spec: CommonSpec, settings: PolicyGradient) -> Graph:
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
        return _without_critic(spec, settings, loss, rewards, advantages)

    return graph


def standardized(loss: str = "policy") -> Callable[[CommonSpec, Standardized], Graph]:
    """Graph of the algorithms of `grouped` whose advantages are divided by a standard deviation."""

    def graph(spec: CommonSpec, settings: Standardized) -> Graph:
        if normalizes_each(settings):
            reads = (*weighted_columns(spec), "position")
            advantages = Compute(name="advantages", function="gdpo", reads=reads, writes=("advantages",))
            return _without_critic(spec, settings, loss, advantages)
        function = "grpo" if settings.standard_deviation == "group" else "grpo_batch"
        return grouped(function, loss)(spec, settings)

    return graph


def _without_critic(spec: CommonSpec, settings: PolicyGradient, loss: str, *prepare: Node) -> Graph:
    """The graph whose nodes `prepare` write the advantages."""
    begin = experience(spec, settings)
    chosen = covariances(settings, begin)
    return Graph((*begin, *prepare, *chosen, train_policy((*begin, *chosen), settings, loss)))
