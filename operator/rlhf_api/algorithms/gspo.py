"""Group sequence policy optimization (Zheng et al. 2025, arXiv:2507.18071)."""

from typing import Literal

from ..field_types import PositiveFloat
from .base import Algorithm
from .each_reward import standardized_rules
from .nodes import standardized
from .policy_gradient import GROUPED, Standardized


class GSPO(Standardized):
    """GRPO with one importance ratio per response, the geometric mean of its tokens' ratios, clipped as a whole."""

    clip_ratio: PositiveFloat = 3e-4
    """The response's ratio is clipped to 1 - clipRatio ... 1 + clipRatioHigh."""
    clip_ratio_high: PositiveFloat = 4e-4
    """Upper bound of the clipped ratio: 1 + clipRatioHigh."""
    loss_aggregation: Literal["token", "sequence", "constant"] = "sequence"
    """Mean over responses; or over all tokens."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence of each token."""
    kl_in: Literal["reward", "loss"] = "loss"
    """The penalty is part of the loss, or of the responses' rewards."""


ALGORITHM = Algorithm(
    name="gspo", settings=GSPO, graph=standardized(loss="gspo"), rules=standardized_rules, usual=GROUPED
)
