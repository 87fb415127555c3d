"""Rewards that are normalised one by one: their columns and weights, and the rules of a job that has them."""

from collections.abc import Iterator

from ..errors.problem import Problem, show
from ..graph import ENVIRONMENT_REWARD, reward_column
from ..sections.common import CommonSpec
from .policy_gradient import PolicyGradient, Standardized, group_rules


def normalizes_each(settings: PolicyGradient) -> bool:
    """True if advantages are of rewards that are each normalised, rather than of their sum."""
    return isinstance(settings, Standardized) and settings.normalize == "each"


def role_columns(spec: CommonSpec) -> dict[str, float]:
    """Columns with the scores of each reward of the reward role, and its weight; without those of weight 0, which are
    measured alone."""
    section = spec.reward
    weights = {model.name: model.weight for model in spec.reward_models}
    weights |= {function.metric: function.weight for function in section.functions}
    return {reward_column(name): weight for name, weight in weights.items() if weight}


def weighted_columns(spec: CommonSpec) -> dict[str, float]:
    """Columns with the scores of each reward of the job, and its weight: 1 of an environment's."""
    return role_columns(spec) | ({} if spec.environment is None else {ENVIRONMENT_REWARD: 1.0})


def standardized_rules(spec: CommonSpec, where: str, settings: Standardized) -> Iterator[Problem]:
    """Rules of algorithms whose advantages are divided by a standard deviation."""
    yield from group_rules(spec, where, settings)
    if not normalizes_each(settings):
        return
    if (count := len(weighted_columns(spec))) < 2:
        yield Problem(
            f"{where}.normalize",
            f"each is for several rewards, and {count} {'has' if count == 1 else 'have'} a weight other than 0 "
            "(reward.functions, reward.models, model.reward, an environment's); use sum, or add others; got 'each'",
        )
    if settings.kl_penalty == "reward":
        yield Problem(
            f"{where}.klIn",
            "a penalty in the rewards is part of their sum, and normalize: each normalises every reward alone; use "
            "loss; got 'reward'",
        )
    for name in ("bias", "scale", "clip"):
        value = getattr(spec.reward, name)
        if value != type(spec.reward).model_fields[name].default:
            yield Problem(
                f"spec.reward.{name}",
                f"is of the sum of the rewards, and {where}.normalize: each normalises every reward alone; remove it; "
                f"got {show(value)}",
            )
