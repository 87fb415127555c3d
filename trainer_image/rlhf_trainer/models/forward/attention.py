"""Attention functions in Transformers' registry: packed sequences, capped scores and attention sinks, and PyTorch's own
attention where a model asks for nothing else."""

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlhf_api.errors.problem import InvalidJob, Problem

from .sequence_parallel import SequenceGroup

PACKED = "rlhf_packed"
"""Name of `packed_attention` in the registry."""
SCORED = ("softcap", "s_aux")
"""Arguments that change the scores, which `_by_blocks` applies and PyTorch's kernels do not: the cap of Gemma 2 (Gemma
Team 2024, arXiv:2408.00118, section 2) and a learned logit for each head that takes part in the softmax, of no token
(OpenAI 2025, arXiv:2508.10925, section 2.2)."""
APPLIED = ("dropout", "scaling", "sliding_window", "is_causal", "position_bias", "cache")
"""Arguments that `sdpa_attention_forward` applies; a window is in its mask."""
WITHOUT_EFFECT = (
    *("position_ids", "cache_position", "use_cache", "return_dict", "logits_to_keep", "num_items_in_batch"),
    *("output_attentions", "output_hidden_states", "output_router_logits", "deterministic"),
    *("max_length_q", "max_length_k", "cu_seq_lens_q", "cu_seq_lens_k", "sequence_group"),
    *("key", "query", "value", "block_indices"),
)
"""Arguments that change no value of attention, or (`block_indices`) are also in the mask."""
BLOCK = 2**25
"""Largest number of scores that `_by_blocks` holds at once, in float32."""
_VARLEN = inspect.signature(varlen_attn).parameters


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    max_length_q: int | None = None,
    sequence_group: SequenceGroup | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Causal attention within each sequence of a packed row; `sdpa_attention` for an ordinary mask.

    Shapes: `query` [1, heads, T, D], `key` and `value` [1, key heads, T, D], `attention_mask` int32 [1, 1, 1, n + 1],
    where each sequence begins and the last one ends (`MicroBatch.attention_mask`) -> [1, T, heads, D]. On a GPU
    FlashAttention over the lengths; on a CPU one call for each sequence; blocks of plain operators with a cap, with
    sinks (`s_aux` [heads]), and in float32 on a GPU, which FlashAttention lacks. With a `sequence_group` T is this
    rank's part of the row, and the mask is that of the whole row. Raises InvalidJob for arguments that it does not
    apply.
    """
    if attention_mask is None or attention_mask.dtype != torch.int32:
        own: dict[str, Any] = {
            "scaling": scaling,
            "sliding_window": sliding_window,
            "softcap": softcap,
            "s_aux": s_aux,
        }
        return sdpa_attention(module, query, key, value, attention_mask, **own, **others)
    _check_applied(module, others, ("dropout", "is_causal"))
    starts = attention_mask.flatten()
    if sequence_group is not None:
        query, key, value = sequence_group.to_heads(query, key, value)
        s_aux = None if s_aux is None else s_aux.view(sequence_group.size, -1)[sequence_group.rank]
    longest = int(starts.diff().max()) if max_length_q is None else max_length_q
    has_kernel = not (query.is_cuda and query.dtype == torch.float32)
    if softcap is None and s_aux is None and has_kernel:
        output = _within(starts, longest, query, key, value, scaling, sliding_window)
    else:
        allowed = partial(_allowed, starts, sliding_window)
        output = _by_blocks(query, key, value, allowed, longest, scaling, softcap, s_aux)
    return (output if sequence_group is None else sequence_group.to_tokens(output)), None


def sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """PyTorch's attention as Transformers calls it, which would ignore a cap of the scores and sinks: applied here.
    Grouped keys and values are repeated in float32 on a GPU, where PyTorch has no kernel for groups and would keep all
    scores.

    Shapes: `query` [n, heads, Q, D], `key` and `value` [n, key heads, K, D], `attention_mask` bool (True: attended) or
    float (added to the scores), [n, 1 or heads, Q, K], or None for causal attention, `s_aux` [heads] -> [n, Q, heads,
    D]. Raises InvalidJob for other arguments that it would ignore.
    """
    _check_applied(module, others, APPLIED)
    if softcap is None and s_aux is None:
        if query.is_cuda and query.dtype == torch.float32 and attention_mask is None:
            key, value = _ungrouped(query, key, value)
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    length, causal = query.shape[2], getattr(module, "is_causal", True)
    if attention_mask is None:
        if length > 1 and causal:
            key, value = key[:, :, :length], value[:, :, :length]
        whole = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device)
        attention_mask = (whole.tril() if length > 1 and causal else whole)[None, None]
    mask = attention_mask[..., : key.shape[2]]
    scaling = others.get("scaling")
    return _by_blocks(query, key, value, lambda q, k: mask[:, :, q, k], None, scaling, softcap, s_aux), None


def _ungrouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values of each query head: two [n, key heads, K, D] -> two [n, heads, K, D]."""
    times = query.shape[1] // key.shape[1]
    return (
        (key, value)
        if times == 1
        else (key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1))
    )


def _check_applied(module: nn.Module, given: dict[str, Any], applied: Iterable[str]) -> None:
    """Raises InvalidJob for arguments of attention that would be ignored: the model would be another one."""
    ignored = sorted(
        name
        for name, value in given.items()
        if value is not None and name not in WITHOUT_EFFECT and name not in applied
    )
    if ignored:
        message = (
            f"{type(module).__name__} gives its attention {', '.join(ignored)}, which PyTorch's would ignore; with "
            "_supports_sdpa and _supports_attention_backend False in its class it has its own attention"
        )
        raise InvalidJob([Problem("spec.model.architectures", message)])


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


def _allowed(starts: Tensor, window: int | None, queries: slice, keys: slice) -> Tensor:
    """Bool [queries, keys]: a query of a packed row attends to keys of its own sequence, not after it, and in its
    window."""
    places = torch.arange(max(queries.stop, keys.stop), device=starts.device)
    owner = torch.bucketize(places, starts[1:], right=True)
    distance = places[queries, None] - places[keys]
    near = (distance >= 0) & (owner[queries, None] == owner[keys])
    return near if window is None else near & (distance < window)


def _by_blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Callable[[slice, slice], Tensor],
    reach: int | None,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention whose scores are capped, or have a sink for each head: [n, heads, Q, D] -> [n, Q, heads, D].

    In blocks of queries, whose scores are computed again in the backward pass, at least in float32 as FlashAttention's
    are. `mask(queries, keys)`: a part of the mask, as `sdpa_attention` takes it. With a `reach` a query attends to no
    key after it, nor to one so many places before it.
    """
    length = query.shape[2]
    key, value = _ungrouped(query, key, value)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rows = max(1, BLOCK // (query.shape[0] * query.shape[1] * min(key.shape[2], 2 * (reach or key.shape[2]))))
    if reach is not None:
        rows = min(rows, max(reach, 128))
    parts = []
    for start in range(0, length, rows):
        queries = slice(start, min(start + rows, length))
        keys = slice(0, key.shape[2]) if reach is None else slice(max(0, start + 1 - reach), queries.stop)
        block = (query[:, :, queries], key[:, :, keys], value[:, :, keys], mask(queries, keys))
        scored = partial(_scored, scale=scale, softcap=softcap)
        parts.append(checkpoint(scored, *block, sinks, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts, dim=2).transpose(1, 2)


def _scored(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    sinks: Tensor | None,
    *,
    scale: float,
    softcap: float | None,
) -> Tensor:
    precise = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(precise) @ key.to(precise).transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    lowest = torch.finfo(precise).min
    scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    if sinks is not None:
        column = sinks.to(precise).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(-1)[..., : key.shape[2]]
    return (weights.to(value.dtype) @ value).to(value.dtype)


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)
AttentionInterface.register("sdpa", sdpa_attention)
