"""Formats a run's metrics as text."""

import datetime
from collections.abc import Mapping
from typing import Any

from rlhf_api.contract.status import JobStatus

from ..console.text import span

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
