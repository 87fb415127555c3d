"""`spec.health`: limits of a step's metrics, and what follows where one is broken."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel

from .base import Frozen, Metric, Positive
from .problems import Problem

if TYPE_CHECKING:
    from .spec import Spec

Action = Literal["warn", "pause", "rollback", "fail"]
"""Action of a broken rule, before the weights of its step are served or saved; see docs/health.md."""
Limit = Annotated[float, Field(allow_inf_nan=False)]
Deviations = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HealthRule(Frozen):
    """Limits of one metric, at least one of them."""

    metric: Metric
    """Its name in `metrics.jsonl`, such as `kl_mean`."""
    above: Limit | None = None
    """Values above this one break the rule."""
    below: Limit | None = None
    """Values below this one break it."""
    deviations_above: Deviations | None = None
    """Values by more than so many standard deviations above their running mean break it."""
    deviations_below: Deviations | None = None
    """Values by more than so many standard deviations below it break it."""
    window: int | None = Field(None, ge=2, le=1000)
    """Steps of the running mean and standard deviation, which have to be there first; 20 unless given."""
    steps: int = Field(1, ge=1, le=1000)
    """Steps in a row that break the rule before it acts."""
    action: Action
    """`warn`, `pause`, `rollback` or `fail`."""

    @property
    def running(self) -> int:
        """Steps of the running mean; 0 where no limit is counted from one."""
        relative = self.deviations_above is not None or self.deviations_below is not None
        return (self.window or 20) if relative else 0

    @property
    def gates(self) -> bool:
        """Snapshots of steps that break it are not good: nothing goes back to one."""
        return self.action != "warn"


class Health(Frozen):
    """Rules on every step's metrics, decided before its weights are served or saved."""

    not_finite: Literal["pause", "rollback", "fail"] = "fail"
    """Action where a loss or the norm of a gradient is NaN or infinite."""
    logprob_difference: float = Field(0.3, ge=0, allow_inf_nan=False)
    """The job fails where log-probabilities of trainer and generators differ by more in a step, with the same weights.
    0 switches it off, as do topP and minNewTokens without a topK of up to 256."""
    rules: tuple[HealthRule, ...] = Field((), max_length=32)
    max_rollbacks: Positive = 3
    """The job fails where it would go back once more."""


def problems(spec: "Spec") -> Iterator[Problem]:
    """Rules that break nothing or everything, and settings that nothing reads."""
    health = spec.health
    for i, rule in enumerate(health.rules):
        where = f"spec.health.rules[{i}]"
        limits = ("above", "below", "deviations_above", "deviations_below")
        if all(getattr(rule, name) is None for name in limits):
            yield Problem(where, f"needs a limit: {', '.join(map(to_camel, limits))}; got none")
        if rule.window is not None and not rule.running:
            message = (
                f"is of deviationsAbove and deviationsBelow, and the rule has neither; got {rule.window}"
            )
            yield Problem(f"{where}.window", message)
        if rule.above is not None and rule.below is not None and rule.below > rule.above:
            message = f"every value breaks a rule of below {rule.below:g} and above {rule.above:g}; swap them"
            yield Problem(where, message)
    if health.max_rollbacks != Health().max_rollbacks and "rollback" not in (
        health.not_finite,
        *(rule.action for rule in health.rules),
    ):
        message = f"has an effect with action rollback only; got {health.max_rollbacks}"
        yield Problem("spec.health.maxRollbacks", message)
