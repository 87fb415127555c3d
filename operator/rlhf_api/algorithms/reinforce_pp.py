"""REINFORCE++ (Hu et al. 2025, arXiv:2501.03262)."""

from collections.abc import Iterator

from ..errors.problem import Problem
from ..field_types import Fraction, NonNegativeFloat
from ..graph import Compute, Graph
from ..sections.common import CommonSpec
from .base import Algorithm
from .nodes import experience, rewarded, train_policy
from .policy_gradient import PolicyGradient, group_rules, policy_gradient_rules


class ReinforcePP(PolicyGradient):
    """REINFORCE with PPO's clipping and advantages normalised over all tokens of a step; no critic."""

    kl_coefficient: NonNegativeFloat = 0.01
    """KL penalty per nat of divergence from the reference; 0: the job has no reference."""
    gamma: Fraction = 1.0
    """Discount factor per token."""
    group_baseline: bool = False
    """Subtracts the mean reward of the responses to the prompt first."""


def _graph(spec: CommonSpec, settings: ReinforcePP) -> Graph:
    centered = settings.group_baseline
    rewards = Compute(
        name="rewards",
        function="token_rewards_centered" if centered else "token_rewards",
        reads=(*rewarded(settings), *(("position",) if centered else ())),
        writes=("token_rewards",),
    )
    advantages = Compute(
        name="advantages", function="reinforce_pp", reads=("token_rewards",), writes=("advantages",)
    )
    begin = experience(spec, settings)
    return Graph((*begin, rewards, advantages, train_policy(begin, settings)))


def _rules(spec: CommonSpec, where: str, settings: ReinforcePP) -> Iterator[Problem]:
    yield from (group_rules if settings.group_baseline else policy_gradient_rules)(spec, where, settings)


ALGORITHM = Algorithm(name="reinforce_pp", settings=ReinforcePP, graph=_graph, rules=_rules)
