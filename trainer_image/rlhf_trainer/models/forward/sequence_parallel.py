"""Sequence parallelism: neighbouring ranks share each packed row, a slice of its tokens each; within attention they
exchange slices of all heads for all tokens of some heads (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv:2309.14509).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn.functional import pad
from transformers import PreTrainedModel

from rlhf_api.errors.problem import InvalidJob, Problem

from ...tensors.batches import MicroBatch
from ...tensors.expert_rows import UNKNOWN
from ...tensors.packed import to_device


@dataclass(frozen=True)
class SequenceGroup:
    """`size` neighbouring ranks, this one at place `rank`, that share the same micro-batches, a slice of the tokens
    each.

    Methods are collectives of the group.
    """

    rank: int
    size: int
    group: distributed.ProcessGroup

    @classmethod
    def of(cls, size: int) -> "SequenceGroup":
        """This rank's group, when all ranks are divided into groups of `size` in order: a collective of all ranks."""
        rank, world = distributed.get_rank(), distributed.get_world_size()
        if world % size:
            raise ValueError(f"spec.trainer.sequenceParallelSize {size} does not divide {world} ranks")
        return cls(rank % size, size, _own_group(size))

    def read(self, micro: MicroBatch, read: Callable[[MicroBatch], Tensor]) -> Tensor:
        """`read` of this rank's slice of the packed row -> its values of the whole row [A_mb, ...], on every rank.

        A value's gradient goes to the rank that read it: each rank computes the same loss and backpropagates its own
        slice, and parameter gradients are summed over the ranks, as with data parallelism.
        """
        length = micro.input_ids.shape[1]
        width = -(-length // self.size)
        owner = (micro.host_column - 1) // width
        counts = torch.bincount(owner, minlength=self.size).tolist()
        own = read(self._slice(micro, width, (owner == self.rank).nonzero()[:, 0]))
        whole: Tensor = _Gather.apply(own, counts, self)  # type: ignore[no-untyped-call]
        return whole

    def _slice(self, micro: MicroBatch, width: int, own: Tensor) -> MicroBatch:
        """`width` tokens of the row, and of its response tokens those in `own` (int64, on the CPU). At its end the row
        is padded with a sequence of padding. The host waits for no GPU."""
        start, missing = self.rank * width, self.size * width - micro.input_ids.shape[1]
        here = slice(start, start + width)
        mask, chosen = micro.attention_mask, to_device(own, micro.targets.device)
        return replace(
            micro,
            input_ids=pad(micro.input_ids, (0, missing), value=micro.pad_token_id)[:, here],
            position_ids=pad(micro.position_ids, (0, missing))[:, here],
            attention_mask=torch.cat([mask, mask[..., -1:] + missing], dim=-1) if missing else mask,
            longest=max(micro.longest, missing),
            response_row=micro.response_row[chosen],
            response_column=micro.response_column[chosen] - start,
            targets=micro.targets[chosen],
            response_index=micro.response_index[own],
            host_column=micro.host_column[own] - start,
            kept=None if micro.kept is None else micro.kept[chosen],
        )

    def slice_owners(self, micro: MicroBatch) -> Tensor:
        """`owners` of the tokens of this rank's slice, of which those past the row's end are padding."""
        width = -(-micro.input_ids.shape[1] // self.size)
        missing = self.size * width - micro.input_ids.shape[1]
        return pad(micro.owners, (0, missing), value=len(micro.rows))[self.rank * width :][:width]

    def slice_routing(self, routing: Tensor) -> Tensor:
        """Routing of the tokens of this rank's slice, int16 [T, L, K] -> [T / size, L, K]."""
        width = -(-len(routing) // self.size)
        missing = self.size * width - len(routing)
        return pad(routing, (0, 0, 0, 0, 0, missing), value=UNKNOWN)[self.rank * width :][:width]

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[1, H, T / size, D] each -> [1, H / size, T, D]. Key heads that `size` does not divide are repeated first."""
        heads, keys = query.shape[1], key.shape[1]
        check_heads(heads, keys, self.size)
        if (times := math.lcm(keys, self.size) // keys) > 1:
            key, value = (x.repeat_interleave(times, dim=1) for x in (key, value))
        parts = [
            x[0].unflatten(0, (self.size, -1)) for x in (query, key, value)
        ]  # [size, H / size, T / size, D]
        sizes = [part.shape[1] for part in parts]
        exchanged = _exchange(torch.cat(parts, dim=1), self).transpose(0, 1).flatten(1, 2)[None]
        q, k, v = exchanged.split(sizes, dim=1)
        return q, k, v

    def to_tokens(self, output: Tensor) -> Tensor:
        """[1, T, H / size, D] -> [1, T / size, H, D]."""
        parts = output[0].unflatten(0, (self.size, -1))  # [size, T / size, H / size, D]
        return _exchange(parts, self).transpose(0, 1).flatten(1, 2)[None]


@functools.cache
def _own_group(size: int) -> distributed.ProcessGroup:
    """Process group of this rank, one for all models: each group has connections and memory of its own."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    groups = [distributed.new_group(range(at, at + size)) for at in range(0, world, size)]
    own = groups[rank // size]
    assert isinstance(own, distributed.ProcessGroup)
    return own


def check_heads(heads: int, keys: int, size: int) -> None:
    """Raises InvalidJob where `size` does not divide the attention heads."""
    if heads % size or heads % math.lcm(keys, size):
        message = f"cannot divide {heads} attention heads with {keys} key heads; use a divisor of {heads}; got {size}"
        raise InvalidJob([Problem("spec.trainer.sequenceParallelSize", message)])


def heads_of(model: PreTrainedModel) -> tuple[int, int]:
    """Number of attention heads and of key heads of a model."""
    text = model.config.get_text_config()
    heads = int(text.num_attention_heads)
    return heads, int(getattr(text, "num_key_value_heads", None) or heads)


def _exchange(parts: Tensor, group: SequenceGroup) -> Tensor:
    """All-to-all. [size, ...]: part i goes to rank i, and part i of the result came from rank i."""
    received: Tensor = _AllToAll.apply(parts, group)  # type: ignore[no-untyped-call]
    return received


class _AllToAll(torch.autograd.Function):
    """Differentiable all-to-all. Its own transpose: rank r receives from rank s what s sent to r."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: SequenceGroup) -> Tensor:
        ctx.group = group
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        distributed.all_to_all_single(received, parts, group=group.group)
        return received

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _AllToAll.forward(ctx, gradients[0], ctx.group), None


class _Gather(torch.autograd.Function):
    """Differentiable all-gather: values of all ranks end to end, `counts` from each; backward returns each rank's own
    part.
    """

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: list[int], group: SequenceGroup) -> Tensor:
        before = sum(counts[: group.rank])
        ctx.own = slice(before, before + len(own))
        if not sum(counts):
            return own.clone()
        filled = own.new_zeros(max(counts), *own.shape[1:])
        filled[: len(own)] = own
        every = [torch.empty_like(filled) for _ in counts]
        distributed.all_gather(every, filled, group=group.group)
        return torch.cat([part[:count] for part, count in zip(every, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.own], None, None
