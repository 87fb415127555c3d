"""Formats a run's metrics as text."""

import datetime
import math
from collections.abc import Callable, Mapping
from typing import Any

from rlhf_api.contract.evaluations import list_means
from rlhf_api.contract.report import STARTING
from rlhf_api.contract.status import JobStatus

from ...console.text import one_line, span

LONGEST = 200
"""Characters of a prompt or a response at the end of a run."""
_PARTS = ("generate", "score", "train", "broadcast")


def step_line(step: Mapping[str, Any], total: int) -> str:
    """A line of `metrics.jsonl`, formatted for people."""
    parts = [f"step {step.get('step', '?')}/{total}"]
    for key, name in (("reward_mean", "reward"), ("kl_mean", "KL"), ("loss", "loss")):
        if isinstance(step.get(key), int | float):
            parts.append(f"{name} {step[key]:.4g}")
    took = timing(step)
    if took:
        parts.append(took)
    if isinstance(step.get("weight_version"), int):
        parts.append(f"weights v{step['weight_version']}")
    return "  ".join(parts)


def evaluation_line(figures: Mapping[str, Any], first: Mapping[str, Any] | None) -> str:
    """A line of `evaluation.jsonl`, formatted for people; `first`: the first one of its set."""
    parts = [f"evaluation after step {figures.get('step', '?')}: {figures.get('set', '?')}"]
    for name, key in list_means(figures).items():
        if isinstance(value := figures.get(key), int | float):
            before = first.get(key) if first is not None else None
            since = f" ({before:.4g} at first)" if isinstance(before, int | float) else ""
            parts.append(f"{name} {value:.4g}{since}")
    if isinstance(count := figures.get("count"), int):
        parts.append(f"{count} rows")
    return "  ".join(parts)


def evaluation_change(first: Mapping[str, Any], last: Mapping[str, Any]) -> list[str]:
    """The first and the last line of a set in `evaluation.jsonl`, formatted for people: its figures, and the response
    to one prompt, before and after."""
    steps = f"from step {first.get('step', '?')} to {last.get('step', '?')}"
    changes = [
        f"{name} {first[key]:.4g} -> {last[key]:.4g}"
        for name, key in list_means(last).items()
        if _is_finite(first.get(key)) and _is_finite(last.get(key))
    ]
    if not changes:
        return []
    return [f"evaluation {steps}: {last.get('set', '?')}  {'  '.join(changes)}", *_texts(first, last)]


def _texts(first: Mapping[str, Any], last: Mapping[str, Any]) -> list[str]:
    """A prompt and its responses in the first and in the last evaluation; nothing where there are none, as of given
    responses."""
    try:
        before, after = first["samples"][0], last["samples"][0]
        prompt = before["prompt"]
        question = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        texts = (("", question), ("before: ", before["answer"]), ("after:  ", after["answer"]))
    except (LookupError, TypeError):
        return []
    return [f"  {label}{_shortened(str(text))}" for label, text in texts] if after["prompt"] == prompt else []


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _shortened(text: str) -> str:
    line = one_line(text.strip())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def waiting_line(status: JobStatus, seconds: float, step: Mapping[str, Any]) -> str:
    """Activity of the run, the seconds that it has taken, and how much of it is left; `step`: the last line of
    `metrics.jsonl`, {} before the first."""
    doing = (status.activity or "").removeprefix(STARTING).removeprefix(": ")
    parts = [f"{doing or status.message or 'starting'}, {span(seconds)}"]
    if doing and status.message:
        parts.append(status.message)
    if status.queue and doing.startswith("generating"):
        parts.append(f"{status.queue} prompts without responses")
    if status.unscored:
        parts.append(f"{status.unscored} responses without a score")
        rewards = {name: value for name, value in step.items() if _is_reward_time(name, value)}
        if rewards:
            slowest = max(rewards, key=lambda name: rewards[name])
            name = slowest.removeprefix("reward_").removesuffix("_seconds")
            parts.append(f"slowest reward of step {step.get('step', '?')}: {name} {rewards[slowest]:.1f} s")
    return "; ".join(parts)


def _is_reward_time(name: str, value: Any) -> bool:
    return name.startswith("reward_") and name.endswith("_seconds") and isinstance(value, int | float)


def timing(step: Mapping[str, Any]) -> str:
    """Throughput of a step and its time by phase: `420 tokens/s  4.2 s (generate 1.8, train 2.4)`."""
    seconds, tokens = step.get("seconds"), step.get("tokens")
    if not isinstance(seconds, int | float) or seconds <= 0:
        return ""
    speed = f"{tokens / seconds:,.0f} tokens/s  " if isinstance(tokens, int | float) else ""
    shares = [f"{part} {step[f'{part}_seconds']:.1f}" for part in _PARTS if step.get(f"{part}_seconds")]
    return f"{speed}{seconds:.1f} s" + (f" ({', '.join(shares)})" if shares else "")


def time_left(status: JobStatus, now: datetime.datetime | None = None) -> str | None:
    """Time until the estimated end, such as `2m 40s`."""
    if status.estimated_end is None:
        return None
    end = datetime.datetime.fromisoformat(status.estimated_end)
    return span((end - (now or datetime.datetime.now(datetime.UTC))).total_seconds())


class Waiting:
    """For how long the run has done what it does now: the seconds since its step or its activity changed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._clock, self._doing, self._since = clock, "", clock()

    def seconds(self, status: JobStatus) -> float:
        """Called for each status."""
        doing = f"{status.step} {status.activity or status.message}"
        if doing != self._doing:
            self._doing, self._since = doing, self._clock()
        return self._clock() - self._since
