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
    floor: float = 0.0,
    decay_steps: int | None = None,
) -> float:
    """The learning rate of optimizer step `step` = 0, 1, ... total_steps - 1; `floor` x `base` from there on if it
    falls.

    Rises linearly to `base`, reached at step warmup_steps - 1 (no step is spent at 0), stays there until the last
    `decay_steps` (all after the warm-up for None), then falls to `floor` x `base` at step total_steps: in a straight
    line, along half a cosine, or not at all.
    Raises ValueError for another schedule.
    Source: cosine and its lowest rate from Loshchilov and Hutter 2017 (arXiv:1608.03983), eq. 5, without restarts;
    `decay_steps` Hu et al. 2024 (arXiv:2404.06395), section 4.2 (warmup-stable-decay).
    """
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    stable = warmup_steps if decay_steps is None else max(warmup_steps, total_steps - decay_steps)
    progress = max(0.0, min(1.0, (step - stable) / max(1, total_steps - stable)))
    if schedule == "constant":
        remaining = 1.0
    elif schedule == "linear":
        remaining = 1.0 - progress
    elif schedule == "cosine":
        remaining = (1.0 + math.cos(math.pi * progress)) / 2
    else:
        raise ValueError(f"schedule must be 'constant', 'linear' or 'cosine'; got {schedule!r}")
    return base * (floor + (1.0 - floor) * remaining)
