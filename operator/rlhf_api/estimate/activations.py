"""Activation memory of a trainer's backward pass for a decoder, by the formulae in docs/reference/memory.md; pure.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", arXiv:2205.05198; here
for gated layers, grouped heads, attention that keeps no scores, and experts whose tokens are sorted for grouped
products, none of them dropped.
"""

from dataclasses import dataclass
from typing import Literal

from ..sections.roles import GradientCheckpointing
from .shapes import Mixture, Shape

HEAD_ELEMENTS = 2048 * 152_000
"""Logits that the output layer holds at once, and as many gradients (`rlhf_trainer.maths.logprobs`); elements."""
Experts = Literal["trained", "frozen", "adapted"]


@dataclass(frozen=True)
class Pass:
    """One micro-batch on one rank: at most `tokens` tokens, `size` bytes per element; `fused`: with Liger's kernels."""

    tokens: int
    size: int
    checkpointing: GradientCheckpointing
    fused: bool
    float32_head: bool = False
    magnitudes: tuple[int, int] = (0, 0)
    """Elements for the magnitudes of an adapter (`shapes.magnitude_elements`)."""
    experts: Experts = "trained"
    """Of a mixture: `adapted` ones have an adapter, which makes their weights anew in each pass."""
    balanced: bool = False
    """True if the load of experts is evened out by a loss."""
    replayed: bool = False
    """True if the choices of experts are replayed."""


def backward_bytes(shape: Shape, run: Pass, *, head: bool) -> float:
    """Peak bytes of activations and temporary buffers, without parameter gradients; `head`: the model is a language
    model whose output layer is trained."""
    wholes = [_layer(shape, run, shape.mixture_at(layer)) for layer in range(shape.layers)]
    again = {"none": [], "selective": wholes[::2], "full": wholes}[run.checkpointing]
    ends = 4 * shape.hidden  # the last norm, and the rows read by the output layer, with their gradient
    stored = sum(wholes) - sum(again) + (len(again) * shape.hidden + ends) * run.tokens * run.size
    work = max(again, default=0)
    if mixture := shape.mixture:
        stored += len(mixture.layers) * _routing(mixture, run) * run.tokens
        # Of the balance loss probabilities and loads in float32, which go first.
        balance = 8 * len(mixture.layers) * mixture.experts * run.tokens if run.balanced else 0
        work = max(work + _expert_work(shape, run, mixture), balance)
    # The output layer's gradient is accumulated in float32, beside a chunk's own.
    held = (4 if run.float32_head else run.size) + run.size
    logits = min(HEAD_ELEMENTS, run.tokens * shape.vocabulary) * held
    output = logits + shape.vocabulary * shape.hidden * (4 + 2 * run.size) if head else 0
    norms = run.magnitudes[1] * run.size
    return stored + norms + max(output, work)


def _layer(shape: Shape, run: Pass, mixture: Mixture | None) -> int:
    """Bytes that a layer keeps: inputs of norms and matrices, and of attention and the gate."""
    fused = run.fused and (shape.mixture is None or shape.mixture.fused)
    wide = 4 // run.size  # the model's own norm keeps its input in float32, and its normalised values
    norm = 1 if fused else 1 + wide  # and its output is the input of matrices, or of the rotary embedding
    # In float32 keys and values are repeated for each query head: no kernel takes them grouped.
    attention = 2 * shape.queries + 2 * (shape.keys if run.size == 2 else shape.queries)
    heads = norm * (shape.queries + shape.keys) if shape.head_norms else 0
    elements = shape.norms * (norm + 1) * shape.hidden + attention + heads + run.magnitudes[0]
    if mixture is None:
        # A mixture's gates are Transformers' own, in its dense layers too.
        gate = shape.inner * (3 if fused and shape.mixture is None else 4)
        return (elements + gate) * run.size * run.tokens
    merged = mixture.experts * shape.expert * run.size if run.experts == "adapted" else 0
    return (elements * run.size + _experts(shape, run, mixture)) * run.tokens + merged


def _experts(shape: Shape, run: Pass, mixture: Mixture) -> int:
    """Bytes a token that experts keep. Per choice: the sorted input and that of the second product, where matrices are
    trained; what the first product gives, its gate, and the output before its weight; three places and the weights."""
    hidden, inner = shape.hidden, mixture.inner
    choice = hidden + 3 * inner + (0 if run.experts == "frozen" else hidden + inner)
    shared = 4 * mixture.shared + (hidden if mixture.shared_gate else 0)
    router = 4 * mixture.experts + (4 * hidden if mixture.float32_router and run.size < 4 else 0)
    return mixture.chosen * (choice * run.size + 32) + shared * run.size + router


def _routing(mixture: Mixture, run: Pass) -> int:
    """Bytes a token that each layer's router has recorded until the backward pass, which no checkpoint drops: logits,
    with their gradient from the balance loss, and choices; of a replay the router's own and the given ones too."""
    logits = mixture.experts * (4 if mixture.float32_router else run.size)
    return (2 if run.balanced else 1) * logits + mixture.chosen * (18 if run.replayed else 8)


def _expert_work(shape: Shape, run: Pass, mixture: Mixture) -> int:
    """Bytes of the backward pass of a layer's experts at its largest: three gradients as large as their outputs, or
    that of the weights that an adapter has made."""
    wide = 4 if mixture.float32_weights else run.size
    outputs = 3 * mixture.chosen * shape.hidden * wide * run.tokens
    merged = 2 * mixture.experts * shape.hidden * mixture.inner * run.size
    return max(outputs, merged if run.experts == "adapted" else 0)
