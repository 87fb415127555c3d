"""Signs that a run learns something else than it should, with a rule of spec.health that would act on each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from .trends import Trend

Trends = Callable[[str], Trend | None]
"""The trend of a figure by its name; None for one that the run lacks."""


class Alarm(NamedTuple):
    """`rule`: YAML of a rule of `spec.health`; empty where there is none, or the job has one of this figure."""

    level: Literal["error", "warning", "info"]
    title: str
    text: str
    rule: str = ""


class _Sign(NamedTuple):
    metric: str
    is_shown: Callable[[Trend, Trends], bool]
    title: str
    text: str
    rule: str


def _rises_with_reward(moved: Trend, trend: Trends) -> bool:
    reward = trend("reward_mean")
    return moved.late > 1.5 * moved.early > 0 and reward is not None and reward.has_risen


_SPREAD = "groups_without_spread_share"
_SIGNS = (
    _Sign(
        "response_length_mean",
        _rises_with_reward,
        "Responses grow with the reward: {early:.4g} tokens, now {late:.4g}",
        "a reward that long responses get for their length alone is being gamed; read the best samples",
        "{metric: response_length_mean, deviationsAbove: 5, window: 30, steps: 3, action: pause}",
    ),
    _Sign(
        _SPREAD,
        lambda moved, _: moved.late > 0.8,
        "{late:.0%} of groups have no spread of scores",
        "all responses to a prompt score alike, so it trains nothing: the prompts are too easy or too hard, or the "
        "reward is constant; the algorithm's dynamicSampling replaces such groups",
        "{metric: groups_without_spread_share, above: 0.99, steps: 20, action: fail}",
    ),
    _Sign(
        "finished_share",
        lambda moved, _: moved.late < 0.8,
        "{rest:.0%} of responses are truncated",
        "they reach spec.sampling.maxNewTokens; what a reward needs may come after it",
        "{metric: finished_share, below: 0.8, steps: 5, action: warn}",
    ),
    _Sign(
        "entropy",
        lambda moved, _: moved.late < 0.2 * moved.early,
        "The entropy has collapsed: {early:.4g} nats, now {late:.4g}",
        "all responses to a prompt become the same; the algorithm's entropyCoefficient or entropyTarget hold it up",
        "{metric: entropy, below: 0.05, steps: 5, action: pause}",
    ),
    _Sign(
        "kl_mean",
        lambda moved, _: moved.late > 0.5,
        "The policy is {late:.3g} nats a token from its reference",
        "so far away its text is often strange; a larger klCoefficient or a klTarget, or a lower learning rate "
        "hold it back",
        "{metric: kl_mean, above: 2.0, steps: 3, action: rollback}",
    ),
    _Sign(
        "ratio_outside_share",
        lambda moved, _: moved.late > 0.1,
        "Trainer and generators differ by over a tenth at {late:.0%} of tokens",
        "their precision or kernels differ; docs/concepts/health.md says what the limits are",
        "{metric: token_mult_prob_error, above: 1.1, steps: 3, action: warn}",
    ),
    _Sign(
        "responses_dropped_share",
        lambda moved, _: moved.late > 0.2,
        "{late:.0%} of responses get no score",
        "a reward fails on them; the trainer's log has its errors",
        "{metric: responses_dropped_share, above: 0.2, steps: 5, action: fail}",
    ),
)
_DROP = 0.1
"""Share of its best held-out score that a run may lose before it is suspicious."""


def find_suspicions(trend: Trends, held_out: Sequence[float], spec: Mapping[str, Any]) -> Iterator[Alarm]:
    """Alarms of suspicious figures; `held_out`: its held-out scores so far."""
    yield from _find_drift(trend, held_out, spec)
    for sign in _SIGNS:
        if sign.metric == _SPREAD and spec.get("algorithm") == "distillation":
            continue  # its teacher tells responses apart where scores do not
        moved = trend(sign.metric)
        if moved is not None and sign.is_shown(moved, trend):
            title = sign.title.format(early=moved.early, late=moved.late, rest=1 - moved.late)
            yield Alarm("warning", title, sign.text, unless_there(sign.rule, sign.metric, spec))


def _find_drift(trend: Trends, held_out: Sequence[float], spec: Mapping[str, Any]) -> Iterator[Alarm]:
    """An alarm if the held-out score fell, or never rose, while the reward rose."""
    reward = trend("reward_mean")
    if len(held_out) < 3 or reward is None or not reward.has_risen:
        return
    first, best, newest = held_out[0], max(held_out), held_out[-1]
    if best - newest > _DROP * abs(best):
        title = f"Held-out score fell from {best:.4g} to {newest:.4g} while the reward rose"
    elif best == first:
        title = f"Held-out score has not risen above the first, {first:.4g}, while the reward rose"
    else:
        return
    text = (
        "the policy may be gaming the reward; compare the best samples with the checkpoint of the best score"
    )
    rule = "{metric: reward_mean, deviationsAbove: 6, window: 30, steps: 2, action: pause}"
    yield Alarm("warning", title, text, unless_there(rule, "reward_mean", spec))


def unless_there(rule: str, metric: str, spec: Mapping[str, Any]) -> str:
    """The rule; empty if the job has one of this metric."""
    health = spec.get("health")
    rules = health.get("rules") if isinstance(health, Mapping) else None
    there = rules if isinstance(rules, list) else []
    return "" if any(isinstance(each, Mapping) and each.get("metric") == metric for each in there) else rule
