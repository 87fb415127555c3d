"""Whole weights of a model that ZeRO-3 divides over the ranks: rank 0 gathers them, bucket by bucket."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import P2POp, Work
from torch.nn import Module

from ..process import progress
from .zero import deepspeed

Named = Iterator[tuple[str, Tensor]]
Bucket = list[tuple[str, Any]]
"""Names with parameters as DeepSpeed divided them, whose `ds_tensor` is this rank's shard, padded; and buffers."""
ALIGNMENT = 16  # bytes, so that what was gathered can be viewed as any dtype
BUCKET_BYTES = 512 << 20
"""Bytes of weights gathered at a time, unless one tensor is larger."""


def gather_whole(items: Named, device: torch.device) -> Named:
    """The tensors, whole on rank 0; the other ranks take part and get none.

    A collective: all ranks iterate to the end. Each rank sends its shards of a bucket in one message, which is on its
    way while the bucket ahead of it is handed out: rank 0 holds two buckets. Nothing is sent to the ranks that need
    nothing, so the links of rank 0 stay free for what it sends elsewhere.
    """
    present: Named = iter(())
    for bucket in _buckets(items):
        following = _begun(bucket, device)
        yield from present
        present = following
    yield from present


@contextmanager
def undivided(engine: Any) -> Iterator[Module]:
    """The model of a ZeRO-3 engine with whole weights on every rank and without DeepSpeed's hooks."""
    offload = engine.optimizer.parameter_offload
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        # The hooks would release each layer's weights after its first forward pass.
        offload._remove_module_hooks()
        offload.forward_hooks, offload.backward_hooks = [], []
        try:
            yield engine.module
        finally:
            offload.setup_zero_stage3_hooks()


def _buckets(items: Named) -> Iterator[Bucket]:
    bucket: Bucket = []
    size = 0
    for name, tensor in progress.each(items):
        nbytes = getattr(tensor, "ds_numel", tensor.numel()) * tensor.element_size()
        if bucket and size + nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += nbytes
    if bucket:
        yield bucket


def _begun(bucket: Bucket, device: torch.device) -> Named:
    """Begins to gather a bucket; what it returns waits for that and gives the tensors, on rank 0."""
    shards = [tensor.ds_tensor for _, tensor in bucket if _divided(tensor)]
    if any(shard.final_location == "nvme" or hasattr(shard, "ds_quant_scale") for shard in shards):
        return _by_deepspeed(bucket)
    own = [shard.view(torch.uint8).to(device, non_blocking=True) for shard in shards]
    if not own:
        return _received(bucket, [], [], [])
    if distributed.get_rank():
        packed = torch.cat(own)
        return _received(bucket, [], own, _transfers([P2POp(distributed.isend, packed, 0)]))
    peers = distributed.get_world_size() - 1
    rows = list(torch.empty((peers, sum(map(len, own))), dtype=torch.uint8, device=device))
    return _received(
        bucket,
        rows,
        own,
        _transfers([P2POp(distributed.irecv, row, peer) for peer, row in enumerate(rows, 1)]),
    )


def _received(bucket: Bucket, rows: list[Tensor], own: list[Tensor], transfers: list[Work]) -> Named:
    """The bucket's tensors on rank 0, whose shards are `own`, uint8; each of `rows` has those of another rank, end to
    end."""
    for transfer in transfers:
        transfer.wait()
    if distributed.get_rank():
        return
    parts = iter(_joined(own, rows) if own else ())
    for name, tensor in progress.each(bucket):
        if _divided(tensor):
            yield name, next(parts).view(tensor.dtype)[: tensor.ds_numel].view(tensor.ds_shape)
        else:
            yield name, tensor.detach()


def _joined(own: list[Tensor], rows: list[Tensor]) -> tuple[Tensor, ...]:
    """Each shard of `own` with what follows it in the `rows`. One copy for all: a launch for each tensor takes more of
    the processor's time than the copy takes of the GPU's."""
    sizes = [len(shard) for shard in own]
    gaps = [-size * (1 + len(rows)) % ALIGNMENT for size in sizes]
    zeros = own[0].new_zeros(ALIGNMENT)
    pieces: list[Tensor] = []
    for gap, *shards in zip(gaps, own, *(row.split(sizes) for row in rows), strict=True):
        pieces += [*shards, zeros[:gap]] if gap else shards
    whole_sizes = [size * (1 + len(rows)) + gap for size, gap in zip(sizes, gaps, strict=True)]
    tensors: tuple[Tensor, ...] = torch.cat(pieces).split(whole_sizes)
    return tensors


def _transfers(operations: list[P2POp]) -> list[Work]:
    return distributed.batch_isend_irecv(operations) if operations else []


def _by_deepspeed(bucket: Bucket) -> Named:
    """Lets DeepSpeed gather the bucket, for shards on a disk or quantized; yields its tensors on rank 0."""
    with deepspeed.zero.GatheredParameters([tensor for _, tensor in bucket]):
        for name, tensor in progress.each(bucket) if distributed.get_rank() == 0 else ():
            yield name, tensor.detach()


def _divided(tensor: Tensor) -> bool:
    return hasattr(tensor, "ds_tensor")
