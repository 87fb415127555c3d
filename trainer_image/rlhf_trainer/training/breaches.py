"""Breaches of the limits that every job has, whatever its rules: `spec.health` without `rules`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_api.sections.health import Action, Health, has_outliers

FINITE = ("loss", "grad_norm")
"""Suffixes of metrics that must be finite in every update; in float16 the norm of a skipped update is 0."""
SIGNAL = "groups_without_spread_share"
"""The metric that is 1 in a step whose scores tell no response from another."""
STEPS_WITHOUT_SIGNAL = 3
"""Consecutive steps without a signal from which on a job warns."""


@dataclass(frozen=True)
class Breach:
    """A rule that acts: `where` is its field, `reason` a reason of HealthStatus."""

    where: str
    action: Action
    reason: str
    message: str


def find_not_finite(health: Health, metrics: Mapping[str, float], step: int) -> Breach | None:
    """A loss or gradient norm that is not finite."""
    bad = {
        name: value for name, value in metrics.items() if name.endswith(FINITE) and not math.isfinite(value)
    }
    if not bad:
        return None
    bad_values = ", ".join(f"{name} {value}" for name, value in sorted(bad.items()))
    message = (
        f"training diverged in step {step}: {bad_values}; a lower spec.optimizer.learningRate, a smaller "
        "spec.optimizer.gradientClip or other data may help"
    )
    return Breach("spec.health.notFinite", health.not_finite, "NotFinite", message)


def find_other_policy(
    health: Health, outliers: float, metrics: Mapping[str, float], step: int
) -> Breach | None:
    """Generators whose log-probabilities differ by more than a limit from the trainer's."""
    mean = metrics.get("logprob_difference", 0.0)
    if health.logprob_difference and mean > health.logprob_difference:
        where, limit = "logprobDifference", health.logprob_difference
        difference = f"differ by {mean:.4g} in the mean in step {step}, and {limit:g} is the limit"
    elif has_outliers(metrics, outliers):
        where, count, share = "logprobOutliers", metrics["logprob_outliers"], metrics["logprob_outlier_share"]
        difference = (
            f"differ by more than 1 nat at {count:.0f} tokens in step {step}, a share of {share:.2g} of those compared "
            f"(by {metrics['logprob_difference_max']:.4g} at most), and a share of {outliers:g} is the limit"
        )
    else:
        return None
    message = (
        "the generators serve another policy than the trainer's: with the same weights the log-probabilities of the "
        f"same tokens {difference}; look for weights that the engine did not load as they are, quantisation, and "
        "options that make it compute or sample otherwise"
    )
    return Breach(f"spec.health.{where}", "fail", "OtherPolicy", message)


def other_weights_breach(changed: str, step: int) -> Breach:
    """Served weights that differ from what was sent; `changed` names their generators."""
    message = (
        f"responses of step {step} may have been sampled by other weights than they name: {changed}; look for faults "
        "of that machine's memory, and for what else writes into the engine"
    )
    return Breach("spec.generator", "fail", "OtherWeights", message)


def no_signal_breach(streak: int, step: int) -> Breach:
    """Scores that have told no response from another for `streak` steps."""
    message = (
        f"no signal for {streak} steps in step {step}: in every group of responses all scores are equal "
        f"({SIGNAL} 1), so no response is better than another; look at the reward (`rlhf replay show`), and for "
        "prompts that are neither too easy nor too hard"
    )
    return Breach("spec.health", "warn", "NoSignal", message)
