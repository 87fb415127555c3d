"""`spec.health`: limits on a step's metrics, and the action if one is broken."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from ..field_types import Frozen, Metric, Positive

OUTLIERS_OF_16_BITS, OUTLIERS_OF_8_BITS = 1e-3, 2e-2
"""Largest share of tokens that may differ by more than 1 nat between two engines of which one computes in 16 bits, or
the generators' holds weights or keys and values in fewer."""
FEWEST_OUTLIERS = 10
"""Fewer tokens than these break no share above 0: in small steps they are chance."""
Action = Literal["warn", "pause", "rollback", "fail"]
"""Action of a broken rule, before the step's weights are served or saved; see docs/concepts/health.md."""
Limit = Annotated[float, Field(allow_inf_nan=False)]
Deviations = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class HealthRule(Frozen):
    """Limits of one metric, at least one of them."""

    metric: Metric
    """Name of the metric in `metrics.jsonl`, such as `kl_mean`."""
    above: Limit | None = None
    """Values above this one break the rule."""
    below: Limit | None = None
    """Values below this one break it."""
    deviations_above: Deviations | None = None
    """Values more than this many standard deviations above their running mean break the rule."""
    deviations_below: Deviations | None = None
    """Values more than this many standard deviations below it break the rule."""
    window: int | None = Field(None, ge=2, le=1000)
    """Number of steps of the running mean and standard deviation; the rule needs that many first; 20 unless given."""
    steps: int = Field(1, ge=1, le=1000)
    """Number of consecutive steps that must break the rule before it acts."""
    action: Action
    """`warn`, `pause`, `rollback` or `fail`."""

    @property
    def running(self) -> int:
        """Window of the running mean in steps; 0 if no limit uses it."""
        relative = self.deviations_above is not None or self.deviations_below is not None
        return (self.window or 20) if relative else 0

    @property
    def gates(self) -> bool:
        """True if a snapshot of a step that breaks the rule is no rollback target."""
        return self.action != "warn"


class Health(Frozen):
    """Rules on every step's metrics, evaluated before its weights are served or saved."""

    not_finite: Literal["pause", "rollback", "fail"] = "fail"
    """Action if a loss or gradient norm is NaN or infinite."""
    logprob_difference: float = Field(0.3, ge=0, allow_inf_nan=False)
    """The job fails if log-probabilities of trainer and generators, with the same weights, differ by more in a step. 0
    disables it, as do topP, minP, minNewTokens and structuredOutputs without a topK of up to 256."""
    logprob_outliers: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    """The job fails if log-probabilities of trainer and generators differ by over 1 nat at more than this share of a
    step's tokens, and at 10: 0 at any, 1 never. Unless given 0 in float32, 0.02 if engine arguments quantize, else
    0.001."""
    rules: tuple[HealthRule, ...] = Field((), max_length=32)
    max_rollbacks: Positive = 3
    """Maximum number of rollbacks; the next one fails the job."""


def has_outliers(metrics: Mapping[str, float], limit: float) -> bool:
    """True if a step's metrics break a limit of `CommonSpec.outlier_limit`."""
    enough = metrics.get("logprob_outliers", 0.0) >= (FEWEST_OUTLIERS if limit else 1)
    return enough and metrics.get("logprob_outlier_share", 0.0) > limit
