"""Proximal policy optimization with a critic (Schulman et al. 2017, arXiv:1707.06347)."""

from collections.abc import Iterator

from pydantic import Field

from ..errors.problem import Problem
from ..field_types import Fraction, NonNegativeFloat, Positive
from ..graph import CRITIC, SEQUENCES, Compute, Graph, Infer, Train
from ..sections.common import CommonSpec
from .base import Algorithm
from .nodes import covariances, experience, rewarded, train_policy
from .policy_gradient import CovarianceControl, policy_gradient_rules


class PPO(CovarianceControl):
    """Proximal policy optimization with a critic and a token-level KL penalty to the reference."""

    kl_coefficient: NonNegativeFloat = 0.05
    """KL penalty per nat of divergence from the reference; 0: the job has no reference."""
    gamma: Fraction = 1.0
    """Discount factor per token."""
    gae_lambda: Fraction = 1.0
    """Lambda of generalized advantage estimation; below 1 the reward at the end reaches a token n before it with
    lambda^n.
    """
    clip_value: NonNegativeFloat = 0.5
    """Value clipping: maximum change of a value before its loss is clipped; 0: no clipping."""
    whiten_advantages: bool = True
    """Whitens advantages to mean 0 and standard deviation 1 over the response tokens of a step."""
    normalize_values: bool = False
    """Value normalisation: the critic learns returns normalised by their running mean and standard deviation."""
    value_ema: float | None = Field(None, ge=0, lt=1)
    """Values come from the moving average of the critic, with this decay per step."""
    value_minibatch_size: Positive | None = None
    """Responses per update of the critic; minibatchSize unless given."""
    critic_warmup_steps: int = Field(0, ge=0)
    """Critic warm-up: number of initial steps in which only the critic is trained."""


def _graph(spec: CommonSpec, settings: PPO) -> Graph:
    begin = experience(spec, settings)
    chosen = covariances(settings, begin)
    return Graph(
        (
            *begin,
            Infer(
                name="values",
                model=CRITIC,
                output="values",
                average=settings.value_ema,
                writes=("values",),
            ),
            Compute(
                name="rewards", function="token_rewards", reads=rewarded(settings), writes=("token_rewards",)
            ),
            Compute(
                name="advantages",
                function="gae",
                reads=("token_rewards", "values"),
                writes=("advantages", "returns"),
            ),
            *chosen,
            train_policy((*begin, *chosen), settings, from_step=settings.critic_warmup_steps),
            Train(
                name="train_critic",
                model=CRITIC,
                loss="value",
                output="values",
                reads=(SEQUENCES, "values", "returns"),
                minibatch_size=settings.value_minibatch_size or settings.minibatch_size,
                balance_tokens=settings.balance_tokens,
                epochs=settings.epochs,
            ),
        )
    )


def _rules(spec: CommonSpec, where: str, settings: PPO) -> Iterator[Problem]:
    yield from policy_gradient_rules(spec, where, settings)
    responses = spec.data.prompts_per_step * spec.sampling.responses_per_prompt
    size = settings.value_minibatch_size
    if size is not None and size > responses:
        yield Problem(
            f"{where}.valueMinibatchSize", f"a step has {responses} responses; use at most that; got {size}"
        )
    warmup = settings.critic_warmup_steps
    if warmup >= spec.steps:
        message = f"the policy would never be trained: use less than steps ({spec.steps}); got {warmup}"
        yield Problem(f"{where}.criticWarmupSteps", message)


ALGORITHM = Algorithm(name="ppo", settings=PPO, graph=_graph, rules=_rules)
