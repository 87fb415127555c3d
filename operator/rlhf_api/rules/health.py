"""Rules of `spec.health`, and the names of a step's metrics, by which its rules go (docs/reference/metrics.md)."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ..algorithms import CUSTOM, algorithm_of, teacher_kl, teachers_of
from ..errors.problem import Problem
from ..errors.similar import closest
from ..graph import POLICY
from ..sections.health import Health
from ..sections.reward import MODEL
from ..spec import Spec

_STEP = ("tokens", "loss", "learning_rate")
"""Metrics of every step; `loss` is that of the model that the graph names first."""
_MODEL = (
    *("grad_norm", "overflow", "loss_scale"),
    *("balance_loss", "expert_share_max", "expert_entropy", "experts_unused_share"),
)
"""Metrics of each trained model, prefixed by its name where there are several."""
_RATIOS = ("clip_fraction", "ratio_mean", "update_kl")
_POLICY = ("pretraining_loss", "experts_replaced_share")
"""Metrics of the policy in a job that samples responses, prefixed in the same way; `_RATIOS` if its loss has any."""
_SAMPLED = (
    *("reward_mean", "reward_std", "responses_dropped", "responses_dropped_share", "groups_filtered"),
    *("groups_without_spread_share", "groups_all_highest_share", "groups_all_lowest_share"),
    *("response_length_mean", "response_length_p50", "response_length_p99"),
    *("finished_share", "thoughts_cut_share", "kl_mean", "kl_coefficient", "entropy", "entropy_coefficient"),
    "value_explained_variance",
    *("logprob_difference", "token_mult_prob_error", "ratio_outside_share", "importance_effective_share"),
    *("logprob_outlier_share", "logprob_outliers", "logprob_difference_max"),
    *("generate_seconds", "score_seconds", "staleness", "staleness_max", "generators_idle_seconds"),
    *("responses_continued", "replay_share", "replay_age", "given_share", "passed_over_share"),
    "stopped_share",
)
_EPISODES = (
    *("turns_mean", "branches_mean", "context_tokens_mean", "episodes_failed", "episodes_failed_share"),
    *("reward_environment_mean", "reward_environment_without_spread_share"),
)
"""Metrics of a job with an environment."""
_REWARD = ("mean", "failed", "seconds", "without_spread_share")
_SOURCE = ("reward_mean", "without_spread_share")
"""Metrics of each source of the training data, where there are several, prefixed by its number."""
_GIVEN = ("prompts_cut", "responses_cut")
_PAIRS = ("accuracy", "reward_margin", "chosen_reward", "rejected_reward")
"""Metrics of pairs of responses."""
_JUDGED = (*_PAIRS, "kl_baseline", "right_step_score", "wrong_step_score")
"""Metrics of given responses with judgements."""


def metrics_of(spec: Spec) -> tuple[str, ...] | None:
    """Every metric that a step of the job can have when its health is judged; None where the losses of an algorithm of
    one's own may return others. Some come with settings alone: a rule about one that does not is found at the first
    step."""
    if algorithm_of(spec) is CUSTOM:
        return None
    graph = spec.graph
    models = {model: f"{model.name}_" if len(graph.trained) > 1 else "" for model in graph.trained}
    named = _MODEL if len(models) == 1 else ("loss", *_MODEL)
    of_models = [f"{before}{name}" for before in models.values() for name in named]
    if not graph.generates:
        return (*_STEP, *of_models, *_GIVEN, *_JUDGED)
    section = spec.reward
    rewards = [MODEL, *(each.name for each in section.models), *(each.metric for each in section.functions)]
    of_rewards = [f"reward_{reward}_{name}" for reward in rewards for name in _REWARD]
    is_paired = any(node.pairs for node in graph.train)
    of_policy = [f"{models[POLICY]}{name}" for name in (*_POLICY, *(() if is_paired else _RATIOS))]
    count = len(spec.data.sources or spec.data.train or ())  # which may not be valid
    of_sources = [f"source_{source}_{name}" for source in range(count) if count > 1 for name in _SOURCE]
    of_episodes = _EPISODES if spec.environment is not None else ()
    of_teachers = map(teacher_kl, teachers_of(spec))
    of_pairs = _PAIRS if is_paired else ()
    return (
        *_STEP,
        *of_models,
        *of_policy,
        *_SAMPLED,
        *of_pairs,
        *of_episodes,
        *of_rewards,
        *of_sources,
        *of_teachers,
    )


def problems(spec: Spec) -> Iterator[Problem]:
    """Problems of rules on metrics that no step has, or that nothing or everything breaks, and of settings without
    effect."""
    health, known = spec.health, metrics_of(spec)
    for i, rule in enumerate(health.rules):
        where = f"spec.health.rules[{i}]"
        if known is not None and rule.metric not in known:
            message = f"no step of {spec.algorithm} has a metric {rule.metric!r}"
            near = closest(rule.metric, known) or " or ".join(n for n in known if rule.metric in n)
            hint = f"did you mean {near}?" if near else "docs/reference/metrics.md has all"
            yield Problem(f"{where}.metric", f"{message}; {hint}")
        limits = ("above", "below", "deviations_above", "deviations_below")
        if all(getattr(rule, name) is None for name in limits):
            yield Problem(where, f"needs a limit: {', '.join(map(to_camel, limits))}; got none")
        if rule.window is not None and not rule.running:
            message = f"applies only to deviationsAbove and deviationsBelow; set one, or remove this; got {rule.window}"
            yield Problem(f"{where}.window", message)
        if rule.above is not None and rule.below is not None and rule.below > rule.above:
            message = f"every value breaks a rule of below {rule.below:g} and above {rule.above:g}; swap them"
            yield Problem(where, message)
    if health.max_rollbacks != Health().max_rollbacks and "rollback" not in (
        health.not_finite,
        *(rule.action for rule in health.rules),
    ):
        message = f"applies only to rules with action rollback; remove it; got {health.max_rollbacks}"
        yield Problem("spec.health.maxRollbacks", message)
