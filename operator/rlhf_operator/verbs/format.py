"""Formats a job's status as the verbs print it; pure."""

import datetime

from rlhf_api.contract.report import CheckpointStatus
from rlhf_api.contract.status import JobStatus

from ..console.text import age, one_line


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
        ("continued", status.responses_continued or None, ",d"),
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
