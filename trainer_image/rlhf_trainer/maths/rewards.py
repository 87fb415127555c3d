"""Transformations of scores into rewards: bias, scale and clip, and an overlong penalty."""

import torch
from torch import Tensor


def scaled_scores(
    scores: Tensor, *, bias: float = 0.0, scale: float = 1.0, clip: tuple[float, float] | None = None
) -> Tensor:
    """clip((score + bias) scale, low, high) with the bounds `clip` = (low, high).

    Shapes: `scores` float [N], or [A] for scores of tokens, in the reward's own unit, as `bias` is; `clip` in the unit
    after `scale` -> the same shape in that unit, same dtype.
    Source: Mei et al. 2024 (ReaL, arXiv:2406.14088), reward_output_bias (there subtracted), reward_output_scaling,
    max_reward_clip of its PPO; clipping Huang et al. 2022, "The 37 Implementation Details of PPO".
    """
    scaled = (scores + bias) * scale
    return scaled if clip is None else scaled.clamp(*clip)


def overlong_penalty(lengths: Tensor, max_length: int, buffer: int) -> Tensor:
    """0 up to max_length - buffer tokens, from there in a straight line to -1 at max_length, and -1 beyond.

    Multiplied by a coefficient and added to the response's score. The ramp tells a long response from a bad one, which
    a cut at max_length does not.
    Shapes: `lengths` int64 [N] of responses, in tokens -> float32 [N] in [-1, 0]. Raises ValueError unless 0 < buffer
    <= max_length.
    Source: Yu et al. 2025 (DAPO, arXiv:2503.14476), eq. 13.
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"the buffer must be 1 to {max_length} tokens (the longest response); got {buffer}")
    return ((max_length - buffer - lengths).to(torch.float32) / buffer).clamp(-1.0, 0.0)
