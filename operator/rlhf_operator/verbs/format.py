"""Formats the output of the verbs; pure."""

import datetime
from collections.abc import Sequence

from rlhf_api.report import CheckpointStatus
from rlhf_api.status import JobStatus


def span(seconds: float) -> str:
    """A duration in its two largest units: `40s`, `2m 40s`, `3h 05m`, `4d 02h`."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}h"
    if hours:
        return f"{hours}h {minute:02d}m"
    return f"{minutes}m {second:02d}s" if minutes else f"{second}s"


def age(since: str, now: datetime.datetime) -> str:
    """Age of a Kubernetes time."""
    return span((now - datetime.datetime.fromisoformat(since)).total_seconds())


def columns(rows: Sequence[Sequence[str]], gap: int = 3) -> list[str]:
    """Rows of cells as aligned lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    space = " " * gap
    return [
        space.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def one_line(text: str) -> str:
    """Text from the cluster, which may contain anything, as part of a line."""
    return "".join(c if c.isprintable() else " " for c in text)


def figures(status: JobStatus) -> list[tuple[str, str]]:
    """Known metrics of a run's last step, as names and values."""
    values = (
        ("reward", status.reward, ".4g"),
        ("KL", status.kl, ".4g"),
        ("loss", status.loss, ".4g"),
        ("tokens/s", status.tokens_per_second, ",.0f"),
        ("staleness", status.staleness, ".3g"),
        ("trainer idle", status.trainer_idle, ".0%"),
        ("generators idle", status.generator_idle, ".0%"),
        ("continued", status.responses_continued or None, ",.0f"),
        ("effective sample", status.importance_effective, ".0%"),
        ("queue", status.queue, "d"),
        ("weights", status.weight_version or None, "d"),
    )
    return [(name, format(value, spec)) for name, value, spec in values if value is not None]


def state(status: JobStatus | None) -> str:
    """State of a job in a line: its phase, and what it waits for."""
    if status is None:
        return "no operator has looked at it yet"
    return f"{status.phase}: {one_line(status.message)}" if status.message else status.phase


def change(status: JobStatus | None) -> str:
    """Line of `status --watch` without a terminal; unchanged until something happens."""
    parts = [state(status)]
    if status is not None:
        parts.append(f"step {status.step}/{status.total_steps}")
        parts += [f"{name} {value}" for name, value in figures(status) if name != "queue"]
        if status.last_checkpoint:
            parts.append(f"checkpoint {status.last_checkpoint.step}")
        if status.restarts:
            parts.append(f"restarts {status.restarts}")
        if status.ledger and (status.ledger.dropped or status.ledger.lost):
            parts.append(f"prompts dropped {status.ledger.dropped}, lost {status.ledger.lost}")
    return "  ".join(parts)


def checkpoint_words(checkpoint: CheckpointStatus, now: datetime.datetime) -> str:
    return f"step {checkpoint.step}, {age(checkpoint.time, now)} ago, {checkpoint.uri}"
