"""Metrics of a step on sampled responses, beside those of its updates."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_api.dataset.rows import Row
from rlhf_api.graph import GIVEN

from ..data.dataset import Dataset
from ..maths.agreement import AGREEMENT, comparable
from ..maths.groups import count_at_bounds, count_without_spread
from ..maths.kl import token_kl
from ..metrics.step import step_metrics
from ..models.trained_model import TrainedModel
from ..ops import output_fn
from ..ops.policy_losses import tokens_of_teachers
from ..ranks.context import TrainerContext
from ..replay.table import Episode
from ..rollout.collector import EpisodeCollector
from ..rollout.responses import sampled_part
from ..rollout.rollouts import Rollouts
from ..scoring.reward_client import RewardClient
from ..tensors.columns import Columns
from ..tensors.records import Sequences


class OnlineMetrics:
    """Computes metrics from the step's responses, and from counts since the step before."""

    def __init__(
        self,
        ctx: TrainerContext,
        policy: TrainedModel,
        collector: EpisodeCollector,
        rollouts: Rollouts,
        reward: RewardClient | None,
        rows: Sequence[Row],
    ) -> None:
        """`reward` is rank 0's alone; `rows`: of the training data."""
        self._rows = rows
        self._ctx, self._policy, self._collector = ctx, policy, collector
        self._rollouts, self._reward = rollouts, reward

    def collected(self, episode: Episode, figures: dict[str, float]) -> dict[str, float]:
        """Metrics of the step's sampled responses before its updates, and of their rewards, and the share of given
        ones; `figures`: the collector's."""
        own = sampled_part(episode)
        return {
            **step_metrics(own.columns, self._compared(own.columns)),
            **(of_thoughts(own.columns.sequences) if self._ctx.spec.sampling.thinking else {}),
            **self._of_teachers(own.columns),
            **self._spread(own, int(figures.get("groups_filtered", 0))),
            **of_sources(own, self._rows),
            **self._given(episode),
            "tokens": int(episode.columns.lengths.sum()),
            "generate_seconds": 0.0,
            "score_seconds": 0.0,
            **figures,
            **self._collector.take_metrics(),
            **(self._reward.take_metrics() if self._reward else {}),
        }

    def agreement(self, columns: Columns) -> dict[str, float]:
        """Agreement of generators and trainer, on a minibatch before the policy moves. A collective."""
        logprobs = self._policy.infer(
            columns.sequences, output_fn("logprobs", self._ctx.spec), columns.lengths
        )
        compared = comparable(columns["versions"], self._rollouts.version, keep=False)
        metrics = step_metrics(columns.with_tokens(logprobs=logprobs), compared)
        return {name: metrics[name] for name in AGREEMENT if name in metrics}

    def trained(self, columns: Columns) -> dict[str, float]:
        """Metrics of the responses that the step has trained on, and of the requests since the step before.
        `staleness`: weight versions between the sampling of its tokens and their training."""
        ages = (self._rollouts.version - columns["versions"]).double()
        metrics = {"staleness": float(ages.mean()), **self._rollouts.figures()}
        return metrics | ({"staleness_max": float(ages.max())} if self._rollouts.is_ahead else {})

    def _of_teachers(self, columns: Columns) -> dict[str, float]:
        """The policy's mean divergence from the teacher of each response, before the step's updates."""
        if "logprobs" not in columns or "reference_logprobs" not in columns:
            return {}
        kl = token_kl(columns["logprobs"], columns["reference_logprobs"])
        return {
            name: float(kl[of].mean()) for name, of in tokens_of_teachers(columns, self._ctx.spec).items()
        }

    def _given(self, episode: Episode) -> dict[str, float]:
        if self._ctx.spec.graph.rows == "prompts":
            return {}
        return {"given_share": float(episode.columns[GIVEN].mean()) if GIVEN in episode.columns else 0.0}

    def _spread(self, episode: Episode, filtered: int) -> dict[str, float]:
        """The share of groups whose scores are equal, the `filtered` ones among them; those at the step's highest and
        lowest score; and for each reward the share of groups that it does not tell apart. With one response a prompt
        all of the step's are one group; one alone has nothing to differ from. Empty without scores."""
        each, prompts = self._ctx.spec.sampling.responses_per_prompt, self._ctx.spec.data.prompts_per_step
        if each == prompts == 1 or "scores" not in episode.columns:
            return {}
        scores, positions = episode.columns["scores"], episode.columns["position"]
        groups = positions if each > 1 else torch.zeros_like(positions)
        without, count = count_without_spread(scores, groups)
        metrics = {"groups_without_spread_share": (without + filtered) / (count + filtered)}
        if each > 1 and not filtered:
            highest, lowest = count_at_bounds(scores, groups)
            metrics |= {
                "groups_all_highest_share": highest / count,
                "groups_all_lowest_share": lowest / count,
            }
        for name, own in episode.rewards.items():
            scored = ~own.isnan()
            if bool(scored.any()):
                without, count = count_without_spread(own[scored], groups[scored])
                metrics[f"reward_{name}_without_spread_share"] = without / count
        return metrics

    def _compared(self, columns: Columns) -> Tensor | None:
        """Tokens that the policy's weights before the step sampled; None where the log-probabilities are the sampler's
        own."""
        if self._collector.sampled or self._ctx.spec.replay.dynamic:
            return None
        keep = self._ctx.spec.rollout.in_flight == "keep"
        return comparable(columns["versions"], self._rollouts.version, keep=keep)


def of_thoughts(sequences: Sequences) -> dict[str, float]:
    """The share of responses whose thought was closed, of which the closing alone is no response token."""
    closed = sequences.after_lengths > sequences.response_lengths
    return {"thoughts_cut_share": float(closed.double().mean())}


def of_sources(episode: Episode, rows: Sequence[Row]) -> dict[str, float]:
    """For each source of the training data, where there are several, the mean score of its responses and the share of
    its groups whose scores are equal. Empty without scores."""
    if not isinstance(rows, Dataset) or len(rows.files) == 1 or "scores" not in episode.columns:
        return {}
    numbers = (int(prompt_id.partition("/")[2]) for prompt_id in episode.prompt_ids)
    sources = torch.tensor([rows.place(number)[0] for number in numbers])
    scores, groups, metrics = episode.columns["scores"], episode.columns["position"], dict[str, float]()
    for source in sources.unique().tolist():
        own = sources == source
        without, count = count_without_spread(scores[own], groups[own])
        metrics[f"source_{source}_reward_mean"] = float(scores[own].double().mean())
        metrics[f"source_{source}_without_spread_share"] = without / count
    return metrics
