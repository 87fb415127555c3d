"""The learning rate of each optimizer step."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate(
    step: int,
    *,
    base: float,
    warmup_steps: int,
    total_steps: int,
    schedule: Schedule,
) -> float:
    """The learning rate of optimizer step `step` = 0, 1, ... total_steps - 1; 0 from there on if it falls.

    Rises linearly to `base`, reached at step warmup_steps - 1 (no step is spent at 0), then falls from there
    to 0 at step total_steps: in a straight line, along half a cosine, or not at all.
    Raises ValueError for another schedule.
    Source: cosine from Loshchilov and Hutter 2017 (arXiv:1608.03983), eq. 5, without restarts.
    """
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    if schedule == "constant":
        remaining = 1.0
    elif schedule == "linear":
        remaining = 1.0 - progress
    elif schedule == "cosine":
        remaining = (1.0 + math.cos(math.pi * progress)) / 2
    else:
        raise ValueError(f"schedule must be 'constant', 'linear' or 'cosine'; got {schedule!r}")
    return base * remaining
