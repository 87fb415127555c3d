"""Health rules on a step's metrics (`spec.health`): pure functions over a window that is part of every snapshot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from rlhf_api.errors.problem import Problem
from rlhf_api.errors.similar import suggestion
from rlhf_api.field_types import FORMER_METRICS
from rlhf_api.sections.health import Action, Health, HealthRule, has_outliers

from ..maths.agreement import AGREEMENT

OF_REWARDS = ("reward_", "responses_dropped")
"""Beginnings of the names of metrics that scoring has, besides those of the responses' total rewards."""
FINITE = ("loss", "grad_norm")
"""Suffixes of metrics that must be finite in every update; in float16 the norm of a skipped update is 0."""
SEVERITY: tuple[Action, ...] = ("warn", "rollback", "pause", "fail")


@dataclass(frozen=True)
class Watch:
    """State of a rule: number of consecutive steps that broke it, and the metric's last values, oldest first."""

    streak: int = 0
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Breach:
    """A rule that acts: `where` is its field, `reason` a reason of HealthStatus."""

    where: str
    action: Action
    reason: str
    message: str


@dataclass(frozen=True)
class Verdict:
    """`watches` after a step, by `key`; `breach` is the most severe one."""

    watches: Mapping[str, Watch]
    breach: Breach | None = None
    unknown: tuple[Problem, ...] = ()
    """Rules whose metrics no step has had."""


def judge(
    health: Health,
    watches: Mapping[str, Watch],
    metrics: Mapping[str, float],
    step: int,
    *,
    begun: bool,
    compared: bool = True,
    outliers: float = 1.0,
    other_weights: str = "",
) -> Verdict:
    """The verdict on the metrics of `step`. `begun`: every model is trained by now, so every metric exists; `compared`:
    log-probabilities of generators and trainer are comparable; `outliers`: the limit of `outlier_limit`;
    `other_weights`: names of generators whose served weights differ from what was sent.

    A missing or NaN metric neither breaks a rule nor resets its count. Values that break a rule enter its running mean
    only once the rule has acted.
    """
    after, breaches, unknown = dict[str, Watch](), list[Breach](), list[Problem]()
    if (new_breach := _not_finite(health, metrics, step)) is not None:
        breaches.append(new_breach)
    if other_weights:
        breaches.append(_other_weights(other_weights, step))
    if compared and (new_breach := _other_policy(health, outliers, metrics, step)) is not None:
        breaches.append(new_breach)
    for i, rule in enumerate(health.rules):
        where, before = f"spec.health.rules[{i}]", watches.get(key(rule), Watch())
        after[key(rule)] = before
        value = metrics.get(rule.metric)
        if value is None and before == Watch() and _due(rule.metric, metrics, step, begun=begun):
            message = f"step {step} has no metric {rule.metric!r}; {suggestion(rule.metric, list(metrics))}"
            unknown.append(Problem(f"{where}.metric", message))
        if value is None or math.isnan(value):
            continue
        reason, words = _broken(rule, before.values, value)
        streak = before.streak + 1 if reason else 0
        acts = streak >= rule.steps
        joins = math.isfinite(value) and (acts or not reason)
        values = (*before.values, value)[-(rule.running or 1) :] if joins else before.values
        after[key(rule)] = Watch(streak, values)
        if acts:
            row = f" for {streak} steps" if streak > 1 else ""
            message = f"{rule.metric} {value:.4g} {words}{row} in step {step}"
            breaches.append(Breach(where, rule.action, reason, message))
    worst = max(breaches, key=lambda breach: SEVERITY.index(breach.action), default=None)
    return Verdict(after, worst, tuple(unknown))


def good(health: Health, watches: Mapping[str, Watch]) -> bool:
    """True if no rule stricter than `warn` is broken: the step may be the target of a rollback."""
    return not any(rule.gates and watches.get(key(rule), Watch()).streak for rule in health.rules)


def key(rule: HealthRule) -> str:
    """A rule's key in a snapshot, independent of its place: its metric and limits. A changed rule starts afresh."""
    return rule.model_dump_json(exclude={"action"}, exclude_none=True)


def saved(watches: Mapping[str, Watch]) -> dict[str, Any]:
    """`watches` as JSON."""
    return {name: {"streak": w.streak, "values": list(w.values)} for name, w in watches.items()}


def restored(state: Mapping[str, Any]) -> dict[str, Watch]:
    """Inverse of `saved`, also of an earlier release, whose rules may have a metric's former name."""
    return {
        _present(name): Watch(fields["streak"], tuple(fields["values"])) for name, fields in state.items()
    }


def _present(key: str) -> str:
    """A rule's key with its metric's present name."""
    for former, name in FORMER_METRICS.items():
        key = key.replace(f'"metric":"{former}"', f'"metric":"{name}"')
    return key


def _not_finite(health: Health, metrics: Mapping[str, float], step: int) -> Breach | None:
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


def _other_policy(health: Health, outliers: float, metrics: Mapping[str, float], step: int) -> Breach | None:
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


def _other_weights(changed: str, step: int) -> Breach:
    message = (
        f"responses of step {step} may have been sampled by other weights than they name: {changed}; look for faults "
        "of that machine's memory, and for what else writes into the engine"
    )
    return Breach("spec.generator", "fail", "OtherWeights", message)


def _due(metric: str, metrics: Mapping[str, float], step: int, *, begun: bool) -> bool:
    """True if this step has the metric, in a job that ever has it. After the first step all tokens may be of older
    weights, which are not compared; and responses that a snapshot brought were scored before."""
    if metric in AGREEMENT:
        return step == 1
    scored = "reward_mean" not in metrics or "responses_dropped" in metrics
    return begun and (scored or not metric.startswith(OF_REWARDS))


def _broken(rule: HealthRule, values: Sequence[float], value: float) -> tuple[str, str]:
    """Reason and text of the limit that `value` breaks; empty if none."""
    if rule.above is not None and value > rule.above:
        return "MetricAbove", f"is above {rule.above:g}"
    if rule.below is not None and value < rule.below:
        return "MetricBelow", f"is below {rule.below:g}"
    if not rule.running or len(values) < rule.running or not (deviation := pstdev(values)):
        return "", ""
    mean = fmean(values)
    by, of = (value - mean) / deviation, f"the mean {mean:.4g} of {rule.running} steps"
    if rule.deviations_above is not None and by > rule.deviations_above:
        return "MetricRose", f"is {by:.1f} standard deviations above {of}"
    if rule.deviations_below is not None and -by > rule.deviations_below:
        return "MetricFell", f"is {-by:.1f} standard deviations below {of}"
    return "", ""
