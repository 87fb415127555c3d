"""Group relative policy optimization (Shao et al. 2024, arXiv:2402.03300)."""

from typing import Literal

from ..field_types import NonNegativeFloat
from .base import Algorithm
from .each_reward import standardized_rules
from .nodes import standardized
from .policy_gradient import GROUPED, CovarianceControl, Standardized


class GRPO(Standardized, CovarianceControl):
    """Group relative policy optimization: a response's advantage is its reward standardised over the responses to the
    prompt; no critic."""

    kl_coefficient: NonNegativeFloat = 0.001
    """KL penalty per nat of divergence from the reference; 0: the job has no reference."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence of each token."""
    kl_in: Literal["reward", "loss"] = "loss"
    """The penalty is part of the loss, or of the responses' rewards."""


ALGORITHM = Algorithm(
    name="grpo", settings=GRPO, graph=standardized(), rules=standardized_rules, usual=GROUPED
)
