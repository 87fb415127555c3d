"""Clipped importance-sampling policy optimization (MiniMax 2025, arXiv:2506.13585)."""

from collections.abc import Iterator
from typing import Any, Literal

from ..errors.problem import Problem
from ..field_types import PositiveFloat
from ..sections.common import CommonSpec
from .base import Algorithm
from .each_reward import standardized_rules
from .nodes import standardized
from .policy_gradient import GROUPED, Standardized


class CISPO(Standardized):
    """GRPO whose clipped importance ratio weighs a token's log-probability, so that no token loses its gradient."""

    clip_ratio: PositiveFloat = 1.0
    """A token's weight is its importance ratio, clipped to 1 - clipRatio ... 1 + clipRatioHigh; 1: no lower bound."""
    clip_ratio_high: PositiveFloat = 4.0
    """Upper bound of the weight: 1 + clipRatioHigh."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence of each token."""
    kl_in: Literal["reward", "loss"] = "loss"
    """The penalty is part of the loss, or of the responses' rewards."""


def rules(spec: CommonSpec, where: str, settings: Any) -> Iterator[Problem]:
    yield from standardized_rules(spec, where, settings)
    if settings.dual_clip is not None:
        yield Problem(
            f"{where}.dualClip",
            f"bounds a surrogate, and cispo has none: clipRatioHigh bounds its weights; got {settings.dual_clip:g}",
        )


ALGORITHM = Algorithm(
    name="cispo", settings=CISPO, graph=standardized(loss="cispo"), rules=rules, usual=GROUPED
)
