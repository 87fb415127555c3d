"""Health rules on a step's metrics (`spec.health`): pure functions over a window that is part of every snapshot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from rlhf_api.errors.problem import Problem
from rlhf_api.errors.similar import suggestion
from rlhf_api.field_types import FORMER_METRICS
from rlhf_api.sections.health import Action, Health, HealthRule

from ..maths.agreement import AGREEMENT
from .breaches import (
    SIGNAL,
    STEPS_WITHOUT_SIGNAL,
    Breach,
    find_not_finite,
    find_other_policy,
    no_signal_breach,
    other_weights_breach,
)

OF_REWARDS = ("reward_", "responses_dropped", "groups_filtered", "episodes_failed", "stopped_share")
"""Beginnings of the names of metrics that responses have when they come, besides those of their total rewards."""
OF_ROWS = ("source_", "teacher_")
"""Beginnings of the names of metrics of a source's rows, or a teacher's, of which a step may have none."""
AT_BOUNDS = "groups_all_"
"""Beginning of the names of metrics that a step lacks where groups were filtered."""
NO_SIGNAL = "no signal"
"""Key of the watch that every job has; no rule's key is the same."""
SEVERITY: tuple[Action, ...] = ("warn", "rollback", "pause", "fail")


@dataclass(frozen=True)
class Watch:
    """State of a rule: number of consecutive steps that broke it, and the metric's last values, oldest first."""

    streak: int = 0
    values: tuple[float, ...] = ()


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
    learns_from_scores: bool = True,
) -> Verdict:
    """The verdict on the metrics of `step`. `begun`: every model is trained by now, so every metric exists; `compared`:
    log-probabilities of generators and trainer are comparable; `outliers`: the limit of `outlier_limit`;
    `other_weights`: names of generators whose served weights differ from what was sent; `learns_from_scores`: no
    teacher tells responses apart where scores do not.

    A missing or NaN metric neither breaks a rule nor resets its count. Values that break a rule enter its running mean
    only once the rule has acted.
    """
    after, breaches, unknown = dict[str, Watch](), list[Breach](), list[Problem]()
    if (new_breach := find_not_finite(health, metrics, step)) is not None:
        breaches.append(new_breach)
    if other_weights:
        breaches.append(other_weights_breach(other_weights, step))
    if compared and (new_breach := find_other_policy(health, outliers, metrics, step)) is not None:
        breaches.append(new_breach)
    if learns_from_scores and (share := metrics.get(SIGNAL)) is not None:
        streak = watches.get(NO_SIGNAL, Watch()).streak + 1 if share == 1 else 0
        after[NO_SIGNAL] = Watch(streak)
        if streak >= STEPS_WITHOUT_SIGNAL:
            breaches.append(no_signal_breach(streak, step))
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


def _due(metric: str, metrics: Mapping[str, float], step: int, *, begun: bool) -> bool:
    """True if this step has the metric, in a job that ever has it. After the first step all tokens may be of older
    weights, which are not compared; responses that a snapshot brought were scored before; and a step without any pair
    of responses has no update."""
    of_others = any(name.startswith(kind) for kind in OF_ROWS if metric.startswith(kind) for name in metrics)
    if "loss" not in metrics or of_others:
        return False
    if metric.startswith(AT_BOUNDS) and metrics.get("groups_filtered"):
        return False
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
