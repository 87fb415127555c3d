"""Adaptive KL coefficient: after each step it moves towards the divergence that the job aims at."""

from rlhf_api.algorithms.policy_gradient import PolicyGradient

from ..maths.kl import adaptive_kl_coefficient
from ..metrics.step import step_metrics
from ..ops import OpContext
from ..ops.compute import kl_coefficient
from ..tensors.columns import Columns


def adapt_kl_coefficient(ctx: OpContext, columns: Columns, metrics: dict[str, float]) -> None:
    """Sets the coefficient of the next step, where the settings have a `kl_target`, and logs that of this one.

    `columns`: the step's own responses; `metrics`: those of its updates, and where `kl_coefficient` is put.
    """
    settings = ctx.settings
    if not isinstance(settings, PolicyGradient) or settings.kl_target is None:
        return
    logged = step_metrics(columns) | metrics
    if "kl_mean" not in logged:
        return
    observed = logged["kl_mean"] * logged["response_length_mean"]
    metrics["kl_coefficient"] = kl_coefficient(ctx)
    ctx.state["kl_coefficient_given"] = settings.kl_coefficient
    ctx.state["kl_coefficient"] = adaptive_kl_coefficient(
        metrics["kl_coefficient"], observed, settings.kl_target, settings.kl_horizon, len(columns)
    )
