"""Metrics of a step's responses, from whichever columns its algorithm has."""

from ..maths.agreement import mean_abs_difference, ratio_outside
from ..maths.importance import effective_share
from ..maths.kl import token_kl
from ..records import Columns

AGREEMENT = ("logprob_difference", "ratio_outside_share")
"""Metrics that compare generator and trainer at the same weights."""


def step_metrics(columns: Columns, *, stale: bool) -> dict[str, float]:
    """Reward, KL and lengths of a batch of responses; `stale`: the generators hold earlier weights than the trainer, so
    that the two say nothing about each other's arithmetic."""
    found: dict[str, float] = {}
    if "scores" in columns:
        scores = columns["scores"]
        found |= {"reward_mean": float(scores.mean()), "reward_std": float(scores.std(correction=0))}
    if "logprobs" in columns and "reference_logprobs" in columns:
        found["kl_mean"] = float(token_kl(columns["logprobs"], columns["reference_logprobs"]).mean())
    found["answer_length_mean"] = float(columns.lengths.float().mean())
    found["finished_share"] = float(columns["finished"].float().mean())
    if "values" in columns and "returns" in columns:
        residual = (columns["returns"] - columns["values"]).var(correction=0)
        spread = columns["returns"].var(correction=0)
        found["value_explained_variance"] = float(1 - residual / spread) if spread > 0 else 0.0
    if "logprobs" in columns and not stale:
        pair = columns["logprobs"], columns["sampled_logprobs"]
        found |= dict(
            zip(AGREEMENT, (float(mean_abs_difference(*pair)), float(ratio_outside(*pair))), strict=True)
        )
    if "importance_weights" in columns:
        found["importance_effective_share"] = float(effective_share(columns["importance_weights"]))
    return found
