"""Activation memory of a trainer's backward pass for a decoder, by the formulae in docs/reference/memory.md; pure.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198; here
for gated layers, grouped heads, and attention that keeps no scores.
"""

import math
from dataclasses import dataclass

from ..sections.roles import GradientCheckpointing
from .parameters import Shape

HEAD_ELEMENTS = 2048 * 152_000
"""Logits that the output layer holds at once, and as many gradients (`rlhf_trainer.maths.logprobs`); elements."""


@dataclass(frozen=True)
class Pass:
    """One micro-batch on one rank: at most `tokens` tokens, `size` bytes per element; `fused`: with Liger's kernels."""

    tokens: int
    size: int
    checkpointing: GradientCheckpointing
    fused: bool
    float32_head: bool = False
    magnitudes: tuple[int, int] = (0, 0)
    """Elements for the magnitudes of an adapter (`parameters.magnitude_elements`)."""


def backward_bytes(shape: Shape, run: Pass, *, head: bool) -> float:
    """Peak bytes of activations and temporary buffers, without parameter gradients; `head`: the model is a language
    model whose output layer is trained."""
    layer = _layer(shape, run)
    recomputed = {"none": 0, "selective": math.ceil(shape.layers / 2), "full": shape.layers}[
        run.checkpointing
    ]
    again = layer if recomputed else 0
    ends = 4 * shape.hidden  # the last norm, and the rows read by the output layer, with their gradient
    stored = ((shape.layers - recomputed) * layer + recomputed * shape.hidden + ends) * run.tokens
    # The output layer's gradient is accumulated in float32, beside a chunk's own.
    held = (4 if run.float32_head else run.size) + run.size
    logits = min(HEAD_ELEMENTS, run.tokens * shape.vocabulary) * held
    output = logits + shape.vocabulary * shape.hidden * (4 + 2 * run.size) if head else 0
    norms = run.magnitudes[1] * run.size
    return stored * run.size + norms + max(output, again * run.tokens * run.size)


def _layer(shape: Shape, run: Pass) -> int:
    """Elements that a layer keeps per token: inputs of norms and matrices, and of attention and the gate."""
    wide = 4 // run.size  # the model's own norm keeps its input in float32, and its normalised values
    norm = shape.hidden * (2 if run.fused else 2 + wide)
    # In float32 keys and values are repeated for each query head: no kernel takes them grouped.
    attention = 2 * shape.queries + 2 * (shape.keys if run.size == 2 else shape.queries)
    heads = shape.queries + shape.keys if shape.head_norms else 0
    gate = shape.inner * (3 if run.fused else 4)
    return shape.norms * norm + attention + heads + gate + run.magnitudes[0]
