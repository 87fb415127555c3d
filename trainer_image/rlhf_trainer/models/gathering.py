"""Whole weights of a model under DeepSpeed: ZeRO-3 divides them over the ranks, and all gather them together."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module

from .. import progress
from .zero import deepspeed

if TYPE_CHECKING:
    from .adapter import Adapter

Named = Iterator[tuple[str, Tensor]]
BUCKET_BYTES = 256 << 20
"""Bytes of weights gathered at a time."""


def whole(items: Named, *, divided: bool, adapter: "Adapter | None") -> Named:
    """The tensors, whole on every rank until the next one is asked for; with those of an `adapter` that are merged into
    them. `divided`: by ZeRO-3. A collective: all ranks iterate in lockstep."""
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in items:
        bucket.append((name, tensor))
        size += getattr(tensor, "ds_numel", tensor.numel()) * tensor.element_size()
        if size >= BUCKET_BYTES:
            yield from _gathered(bucket, divided, adapter)
            bucket, size = [], 0
    yield from _gathered(bucket, divided, adapter)


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


def _gathered(bucket: list[tuple[str, Tensor]], divided: bool, adapter: "Adapter | None") -> Named:
    if not bucket:
        return
    parts = [tensor for _, tensor in bucket]
    if adapter is not None:  # matrices that are merged into them
        parts += [matrix for name, _ in bucket for matrix in adapter.matrices(name)]
    with deepspeed.zero.GatheredParameters(parts, enabled=divided):
        for name, tensor in bucket:
            progress.sign()
            yield name, tensor.detach()
