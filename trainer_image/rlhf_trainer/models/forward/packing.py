"""Models that can read packed sequences: all sequences of a micro-batch end to end in one row, without padding."""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...tensors.batches import MicroBatch
from ...tensors.records import Sequences

EXACT = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference between packed and padded logits attributed to rounding, relative to the largest logit, by dtype.
"""


def can_pack(model: PreTrainedModel) -> bool:
    """True if the model supports custom attention functions and reads position ids, and no window of its attention is
    in its masks alone, which packed attention does not read."""
    return (
        bool(getattr(model, "_supports_attention_backend", False))
        # which pools at the last token before padding
        and not type(model).__name__.endswith("ForSequenceClassification")
        and not _windows_in_masks(model)
    )


def _windows_in_masks(model: PreTrainedModel) -> bool:
    """True for attention in chunks, and for layers with a sliding window, narrower than all positions, that they do not
    pass on to attention functions, as Qwen2-MoE's and PhiMoE's."""
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ("sliding_attention",)
    if "chunked_attention" in kinds:
        return True
    window, positions = (getattr(text, name, None) for name in ("sliding_window", "max_position_embeddings"))
    if not window or "sliding_attention" not in kinds or (positions and window >= positions):
        return False
    layers = {type(module) for module in model.modules() if type(module).__name__.endswith("Attention")}
    return not any("sliding_window" in inspect.getsource(layer.forward) for layer in layers)


def packing_fault(forward: Callable[[MicroBatch], Tensor], dtype: torch.dtype, device: torch.device) -> str:
    """The reason for which a model cannot read packed sequences, "" where a sequence's packed logits do not depend on
    the sequences before it, bit for bit, and equal its own up to rounding. Models have one whose layers mix packed
    sequences, such as convolutions over the row.

    `forward`: micro-batch -> logits [n, T, ...].
    """
    one, other, last = [5, 3, 8, 2, 7, 4, 6], [2, 9, 4, 3, 6, 5, 8], [4, 7, 3, 5, 2]

    def logits(*rows: list[int], packed: bool) -> Tensor:
        sequences = Sequences.pack([(tokens[:2], tokens[2:]) for tokens in rows])
        micro = MicroBatch.build(sequences, range(len(rows)), 0, device, packed=packed)
        return forward(micro)[0, -len(last) :].detach().float()

    try:
        first, second = logits(one, last, packed=True), logits(other, last, packed=True)
        alone = logits(last, packed=False)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        return f"packed attention failed: {error}"
    exact = float((first - alone).abs().max()) <= EXACT.get(dtype, 1e-4) * float(alone.abs().max())
    return (
        "" if exact and torch.equal(first, second) else "its outputs change with what is packed beside them"
    )
