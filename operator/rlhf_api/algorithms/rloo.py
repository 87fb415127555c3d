"""REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740)."""

from ..field_types import NonNegativeFloat
from .base import Algorithm
from .nodes import grouped
from .policy_gradient import GROUPED, PolicyGradient, group_rules


class RLOO(PolicyGradient):
    """REINFORCE with the mean reward of the other responses to the prompt as baseline; no critic."""

    kl_coefficient: NonNegativeFloat = 0.05
    """KL penalty per nat of divergence from the reference; 0: the job has no reference."""


ALGORITHM = Algorithm(name="rloo", settings=RLOO, graph=grouped("rloo"), rules=group_rules, usual=GROUPED)
