"""Whole weights of a model that ZeRO-3 divides over the ranks: rank 0 gathers them, bucket by bucket."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Module

from .. import progress
from .zero import deepspeed

Named = Iterator[tuple[str, Tensor]]
Bucket = list[tuple[str, Any]]
"""Names with parameters as DeepSpeed divided them, whose `ds_tensor` is this rank's shard, padded; and buffers."""
BUCKET_BYTES = 256 << 20
"""Bytes of weights gathered at a time, unless one tensor is larger."""


def whole(items: Named, device: torch.device) -> Named:
    """The tensors, whole on rank 0; the other ranks take part and get none.

    A collective: all ranks iterate to the end. One gather a bucket, begun before the bucket ahead of it is handed out:
    rank 0 holds two buckets. Nothing is sent to the ranks that need nothing, so the links of rank 0 stay free for what
    it sends elsewhere.
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
    raw = [shard.view(torch.uint8).to(device) for shard in shards]
    own = torch.cat([torch.empty(0, dtype=torch.uint8, device=device), *raw])
    ranks = distributed.get_world_size() if distributed.get_rank() == 0 else 0
    rows = own.new_empty(ranks, len(own))
    work = distributed.gather(own, list(rows), async_op=True) if shards else None
    return _received(bucket, rows, work)


def _received(bucket: Bucket, rows: Tensor, work: distributed.Work | None) -> Named:
    """Tensors cut out of `rows` [ranks, bytes of a rank's shards], of which ranks that get none have none."""
    if work is not None:
        work.wait()
    begin = 0
    for name, tensor in progress.each(bucket) if len(rows) else ():
        if not _divided(tensor):
            yield name, tensor.detach()
            continue
        end = begin + tensor.ds_tensor.nbytes
        flat = torch.cat(rows[:, begin:end].unbind())  # a copy, aligned for any dtype
        yield name, flat.view(tensor.dtype)[: tensor.ds_numel].view(tensor.ds_shape)
        begin = end


def _by_deepspeed(bucket: Bucket) -> Named:
    """Lets DeepSpeed gather the bucket, for shards on a disk or quantized; yields its tensors on rank 0."""
    with deepspeed.zero.GatheredParameters([tensor for _, tensor in bucket]):
        for name, tensor in progress.each(bucket) if distributed.get_rank() == 0 else ():
            yield name, tensor.detach()


def _divided(tensor: Tensor) -> bool:
    return hasattr(tensor, "ds_tensor")
