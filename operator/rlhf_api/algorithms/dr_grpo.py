"""GRPO done right (Liu et al. 2025, arXiv:2503.20783)."""

from typing import Literal

from .base import Algorithm
from .nodes import grouped
from .policy_gradient import GROUPED, PolicyGradient, group_rules


class DrGRPO(PolicyGradient):
    """GRPO without its two biases: advantages are not divided by the group's standard deviation, nor a response's
    loss by its length."""

    loss_aggregation: Literal["token", "sequence", "constant"] = "constant"
    """Sum over tokens divided by responses x sampling.maxNewTokens; or a mean, as in the other algorithms."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the divergence of each token."""
    kl_in: Literal["reward", "loss"] = "loss"
    """The penalty is part of the loss, or of the responses' rewards."""


ALGORITHM = Algorithm(
    name="dr_grpo", settings=DrGRPO, graph=grouped("group_mean"), rules=group_rules, usual=GROUPED
)
