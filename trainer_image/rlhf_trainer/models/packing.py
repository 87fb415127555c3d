"""Attention over packed sequences: all sequences of a micro-batch end to end in one row, without padding."""

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..batches import MicroBatch
from ..records import Sequences
from .sequence_parallel import SequenceGroup

log = logging.getLogger(__name__)

PACKED = "rlhf_packed"
"""Name of `packed_attention` in Transformers' registry."""
_VARLEN = inspect.signature(varlen_attn).parameters
EXACT = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest difference between packed and padded logits attributed to rounding, relative to the largest logit, by dtype.
"""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    max_length_q: int | None = None,
    sequence_group: SequenceGroup | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention within each sequence of a packed row; ordinary attention for an ordinary mask.

    Shapes: `query` [1, heads, T, D], `key` and `value` [1, key heads, T, D], `attention_mask` int32 [1, 1, 1, n + 1],
    where each sequence begins and the last one ends (`MicroBatch.attention_mask`) -> [1, T, heads, D]. On a GPU
    FlashAttention over the lengths; on a CPU one call for each sequence. With a `sequence_group` T is this rank's part
    of the row, and the mask is that of the whole row. Raises NotImplementedError for attention that caps its scores or
    has sinks.
    """
    if attention_mask is None or attention_mask.dtype != torch.int32:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            sliding_window=sliding_window,
            **others,
        )
    unknown = [name for name in ("softcap", "s_aux") if others.get(name) is not None]
    if unknown:
        raise NotImplementedError(f"packed attention does not know {', '.join(unknown)}")
    starts = attention_mask.flatten()
    if sequence_group is not None:
        query, key, value = sequence_group.to_heads(query, key, value)
    longest = int(starts.diff().max()) if max_length_q is None else max_length_q
    output = _within(starts, longest, query, key, value, scaling, sliding_window)
    return (output if sequence_group is None else sequence_group.to_tokens(output)), None


def _within(
    starts: Tensor,
    longest: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    sliding_window: int | None,
) -> Tensor:
    """Causal attention within the sequences that begin at `starts`: [1, heads, T, D] -> [1, T, heads, D]."""
    grouped = query.shape[1] != key.shape[1]
    if query.is_cuda:
        left = -1 if sliding_window is None else sliding_window - 1
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
        # Before torch 2.12 it accepts grouped key heads without `enable_gqa`.
        options: dict[str, Any] = {"enable_gqa": True} if grouped and "enable_gqa" in _VARLEN else {}
        out = varlen_attn(
            q, k, v, starts, starts, longest, longest, scale=scaling, window_size=(left, 0), **options
        )
        assert isinstance(out, Tensor)
        return out[None]
    parts, lengths = [], starts.diff().tolist()
    # Split, not sliced: the backward pass of a slice fills a gradient of the whole row, for each sequence.
    for q, k, v in zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True):
        length, near = q.shape[2], None
        if sliding_window is not None and length > sliding_window:
            near = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - sliding_window)
        parts.append(
            scaled_dot_product_attention(
                q, k, v, attn_mask=near, is_causal=near is None, scale=scaling, enable_gqa=grouped
            )
        )
    return torch.cat(parts, dim=2).transpose(1, 2)


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)


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


def packs_exactly(forward: Callable[[MicroBatch], Tensor], dtype: torch.dtype, device: torch.device) -> bool:
    """True if a sequence's packed logits do not depend on the sequences before it, bit for bit, and equal its own up to
    rounding. False for models whose layers mix packed sequences, such as convolutions over the row.

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
        log.info("packed attention failed: %s", error)
        return False
    scale = float(alone.abs().max())
    return torch.equal(first, second) and float((first - alone).abs().max()) <= EXACT.get(dtype, 1e-4) * scale
