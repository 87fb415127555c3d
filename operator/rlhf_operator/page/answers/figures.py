"""Answers about a run's figures: their names with units, the ones worth seeing first, and their values by step."""

from bisect import bisect_right
from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import ceil, isfinite
from typing import Any

from ..folder.run_folder import EVALUATION, RunFolder
from ..folder.series import Series
from ..refusal import Query, Refusal, read_count

MOST_NAMES = 64
"""Of one request."""
MOST_VALUES = 1_000_000
"""Of the reply with all figures, which of a long run has every second step, every third and so on."""
FIRST = 8
"""Number of charts of the first view."""
_LINES = 6
"""Of one of them: a job may have dozens of rewards or evaluation sets, and a request has MOST_NAMES names."""
_CHARTS = (
    ("Reward", ("reward_mean", "reward_*_mean")),
    ("Held-out score", (f"{EVALUATION}*/mean", f"{EVALUATION}*/loss")),
    ("Distance to the reference (KL)", ("kl_mean",)),
    ("Entropy", ("entropy",)),
    ("Length of responses", ("response_length_mean", "response_length_p99")),
    ("Groups without spread, finished responses", ("groups_without_spread_share", "finished_share")),
    ("Tokens on which trainer and generators differ", ("ratio_outside_share", "logprob_outlier_share")),
    ("Idle shares", ("trainer_idle_share", "generator_idle_share")),
    ("Loss", ("loss", "policy_loss", "critic_loss")),
    ("Accuracy", ("accuracy",)),
    ("Rewards of the loss", ("reward_margin", "chosen_reward", "rejected_reward")),
    ("Gradient norm", ("grad_norm", "policy_grad_norm", "critic_grad_norm")),
    ("Learning rate", ("learning_rate",)),
    ("Seconds of a step", ("seconds",)),
    ("Tokens of a step", ("tokens",)),
)
"""Titles and figures of charts, the most important first; `*`: any name."""
_HELP = {
    "reward_mean": "mean of the responses' total rewards",
    "kl_mean": "mean log-probability of the sampled tokens, less that of the reference",
    "entropy": "entropy of the policy",
    "response_length_mean": "tokens of a response",
    "response_length_p99": "tokens of a response, 99th percentile",
    "finished_share": "share of responses that ended by themselves; the others were truncated",
    "groups_without_spread_share": "share of groups whose scores are all equal, which train nothing",
    "ratio_outside_share": "share of tokens whose probability differs between trainer and generator by over a tenth",
    "logprob_outlier_share": "share of tokens whose log-probability differs by over 1 nat",
    "trainer_idle_share": "share of the step in which the trainer waited for generators",
    "generator_idle_share": "share of the step in which generators waited for the trainer",
    "accuracy": "share of pairs whose better response has the higher score",
    "reward_margin": "mean difference between the rewards of the better and the worse response",
    "loss": "what was minimised",
    "grad_norm": "2-norm of the gradient before it was clipped",
    "learning_rate": "of the last update",
    "seconds": "time of the whole step",
    "tokens": "tokens of the step's sequences",
}
_UNITS = {"kl_mean": "nats/token", "entropy": "nats/token", "update_kl": "nats/token", "tokens": "tokens"}
_COUNTERS = {"episode", "weight_version"}
"""Figures of a line that are the step's number again."""
_ENDS = (
    ("_seconds", "s"),
    ("_share", "share"),
    ("_bytes", "B"),
    ("_gigabytes", "GB"),
    ("_tokens_mean", "tokens"),
)


def list_figures(run: RunFolder) -> dict[str, Any]:
    """`/runs/{id}/metrics` without names."""
    names = _names(run)
    return {"names": [{"name": name, "help": _HELP.get(name, ""), "unit": _unit(name)} for name in names]}


def first_charts(run: RunFolder) -> list[dict[str, Any]]:
    """The charts of the first view: the most important ones of which the run has a figure."""
    names = _names(run)
    charts = [
        (title, list(dict.fromkeys(n for p in patterns for n in names if fnmatchcase(n, p))))
        for title, patterns in _CHARTS
    ]
    return [
        {"title": _limit_title(title, len(figures)), "names": figures[:_LINES]}
        for title, figures in charts
        if figures
    ][:FIRST]


def _limit_title(title: str, count: int) -> str:
    return f"{title} ({_LINES} of {count}, the others by search)" if count > _LINES else title


def _names(run: RunFolder) -> list[str]:
    return sorted({*run.metrics.names, *run.evaluations.names} - _COUNTERS)


def read_values(run: RunFolder, query: Query) -> dict[str, Any]:
    """`/runs/{id}/metrics?names=`: the values of each step after `after`, and the seconds that the steps up to each one
    took together."""
    names = [name for name in query["names"].split(",") if name]
    is_whole = names == ["*"]
    if is_whole:
        names = _names(run)
    elif not names or len(names) > MOST_NAMES:
        raise Refusal(
            400, f"names must be 1 to {MOST_NAMES} names with commas between them; got {len(names)}"
        )
    after = read_count(query, "after", -1)
    held_out = [name for name in names if name.startswith(EVALUATION)]
    steps = list(run.metrics.steps[run.metrics.after(after) :])
    if held_out:
        more = run.evaluations.steps
        steps = sorted({*steps, *more[run.evaluations.after(after) :]})
    if is_whole:
        steps = steps[:: max(1, ceil(len(steps) * len(names) / MOST_VALUES))]
    series = {
        name: _align(run.evaluations if name in held_out else run.metrics, name, steps) for name in names
    }
    generation = run.metrics.generation + run.evaluations.generation
    return {
        "steps": steps,
        "elapsed": _elapsed(run.metrics, steps),
        "generation": generation,
        "series": series,
    }


def _align(series: Series, name: str, steps: Sequence[int]) -> list[float | None]:
    """The values at these steps; None where there is none, or no finite one."""
    own, values = series.steps, series.values(name)
    begin = bisect_right(own, steps[0] - 1) if steps else 0
    if len(own) - begin == len(steps):  # of all of them, in order
        return [value if isfinite(value) else None for value in values[begin:]]
    by_step = dict(zip(own[begin:], values[begin:], strict=True))
    return [value if (value := by_step.get(step)) is not None and isfinite(value) else None for step in steps]


def _elapsed(metrics: Series, steps: Sequence[int]) -> list[float]:
    total, sums = 0.0, []
    for value in metrics.values("seconds"):
        total += value if isfinite(value) else 0.0
        sums.append(round(total, 3))
    own = metrics.steps
    places = (bisect_right(own, step) for step in steps)
    return [sums[place - 1] if place else 0.0 for place in places]


def _unit(name: str) -> str:
    last = name.rpartition("/")[2]
    if last == "seconds":
        return "s"
    if last.startswith("response_length"):
        return "tokens"
    return _UNITS.get(last) or next((unit for end, unit in _ENDS if last.endswith(end)), "")
