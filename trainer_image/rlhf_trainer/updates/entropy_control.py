"""Adaptive entropy bonus: after each step its coefficient moves by the entropy that the updates measured."""

from rlhf_api.algorithms.policy_gradient import PolicyGradient

from ..maths.entropy import adaptive_entropy_coefficient
from ..ops import OpContext
from ..ops.compute import entropy_coefficient


def adapt_entropy_coefficient(ctx: OpContext, metrics: dict[str, float]) -> None:
    """Sets the coefficient of the next step, where the settings have an `entropy_target`, and logs that of this one.

    `metrics`: those of the step's updates, and where `entropy_coefficient` is put.
    """
    settings = ctx.settings
    if (
        not isinstance(settings, PolicyGradient)
        or settings.entropy_target is None
        or "entropy" not in metrics
    ):
        return
    metrics["entropy_coefficient"] = entropy_coefficient(ctx)
    before, observed = float(ctx.state.get("entropy_coefficient", 0.0)), metrics["entropy"]
    ctx.state["entropy_coefficient"] = adaptive_entropy_coefficient(
        before, observed, settings.entropy_target, settings.entropy_coefficient
    )
    ctx.state["entropy_is_low"] = observed <= settings.entropy_target
