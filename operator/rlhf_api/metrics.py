"""Names of a step's metrics, by which health rules may go, known before a job starts; see docs/metrics.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .algorithms import CUSTOM, algorithm_of, graph_of
from .graph import POLICY

if TYPE_CHECKING:
    from .spec import Spec

_STEP = ("tokens", "loss", "learning_rate")
"""Metrics of every step; `loss` is that of the model that the graph names first."""
_MODEL = ("grad_norm", "overflow", "loss_scale")
"""Metrics of each trained model, prefixed by its name where there are several."""
_POLICY = ("clip_fraction", "ratio_mean", "update_kl", "pretraining_loss")
"""Metrics of the policy in a job that samples responses, prefixed in the same way."""
_SAMPLED = (
    *("reward_mean", "reward_std", "responses_dropped", "responses_dropped_share", "answer_length_mean"),
    *("finished_share", "kl_mean", "kl_coefficient", "entropy", "value_explained_variance"),
    *("logprob_difference", "token_mult_prob_error", "ratio_outside_share", "importance_effective_share"),
    *("logprob_outlier_share", "logprob_outliers", "logprob_difference_max"),
    *("generate_seconds", "score_seconds", "staleness", "staleness_max", "generators_idle_seconds"),
    *("responses_continued", "replay_share", "replay_age"),
)
_REWARD = ("mean", "failed", "seconds")
_GIVEN = ("prompts_cut", "responses_cut")
_PAIRS = ("accuracy", "reward_margin", "chosen_reward", "rejected_reward")


def metrics_of(spec: Spec) -> tuple[str, ...] | None:
    """Every metric that a step of the job can have when its health is judged; None where the losses of an algorithm of
    one's own may return others. Some come with settings alone: a rule about one that does not is found at the first
    step."""
    if algorithm_of(spec) is CUSTOM:
        return None
    graph = graph_of(spec)
    models = {model: f"{model.name}_" if len(graph.trained) > 1 else "" for model in graph.trained}
    named = _MODEL if len(models) == 1 else ("loss", *_MODEL)
    of_models = [f"{before}{name}" for before in models.values() for name in named]
    if not graph.generates:
        return (*_STEP, *of_models, *_GIVEN, *_PAIRS)
    rewards = ["model", *(function.metric for function in spec.reward.functions)]
    of_rewards = [f"reward_{reward}_{name}" for reward in rewards for name in _REWARD]
    of_policy = [f"{models[POLICY]}{name}" for name in _POLICY]
    return (*_STEP, *of_models, *of_policy, *_SAMPLED, *of_rewards)
