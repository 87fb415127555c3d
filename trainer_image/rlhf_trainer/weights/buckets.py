"""Buckets: whole named tensors laid end to end in one uint8 tensor, which is what travels."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: every dtype can be viewed in place, and copies stay aligned


@dataclass(frozen=True)
class Spec:
    """One tensor's name, dtype (as in `torch.<dtype>`) and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Spec":
        return cls(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> "Spec":
        """From `[name, dtype, [dimensions]]`.

        Raises:
            ValueError: the row is not of that form, or torch has no such dtype.
        """
        name, dtype, shape = row
        if not isinstance(getattr(torch, dtype, None), torch.dtype) or any(
            type(d) is not int or d < 0 for d in shape
        ):
            raise ValueError(f"not a tensor: {row!r}; expected [name, torch dtype, [dimensions]]")
        return cls(name, dtype, tuple(shape))

    def json(self) -> list[Any]:
        return [self.name, self.dtype, list(self.shape)]

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def room(self) -> int:
        """Bytes it takes in a bucket: a multiple of ALIGNMENT, never 0, so that no bucket is empty."""
        return max(ALIGNMENT, -(-self.nbytes // ALIGNMENT) * ALIGNMENT)


@dataclass(frozen=True)
class Bucket:
    """Tensors `specs` in `data`, uint8 [sum of their room]; the bytes between them are zero."""

    specs: tuple[Spec, ...]
    data: Tensor


def pack(tensors: Iterable[tuple[str, Tensor]], bucket_bytes: int, device: torch.device) -> Iterator[Bucket]:
    """The tensors, in their order, as buckets of at most `bucket_bytes` (more where one tensor alone is larger).

    Made as the tensors come: a tensor is copied before the next one is asked for, so it may be gone by then
    (gathered ZeRO-3 shards). Two buffers take turns: a bucket's data is overwritten when the next but one is
    asked for.
    """
    buffers = [torch.empty(bucket_bytes, dtype=torch.uint8, device=device) for _ in range(2)]
    specs: list[Spec] = []
    used = 0
    for name, tensor in tensors:
        spec = Spec.of(name, tensor)
        if specs and used + spec.room > bucket_bytes:
            yield Bucket(tuple(specs), buffers[0][:used])
            buffers.reverse()
            specs, used = [], 0
        if spec.room > bucket_bytes:
            data = torch.empty(spec.room, dtype=torch.uint8, device=device)
            _write(data, tensor)
            yield Bucket((spec,), data)
            continue
        _write(buffers[0][used : used + spec.room], tensor)
        specs.append(spec)
        used += spec.room
    if specs:
        yield Bucket(tuple(specs), buffers[0][:used])


def _write(room: Tensor, tensor: Tensor) -> None:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    room[: len(raw)].copy_(raw)
    if len(raw) < len(room):
        room[len(raw) :].zero_()


def unpack(bucket: Bucket) -> list[tuple[str, Tensor]]:
    """The bucket's tensors, as views of its data."""
    tensors, offset = [], 0
    for spec in bucket.specs:
        raw = bucket.data[offset : offset + spec.nbytes]
        tensors.append((spec.name, raw.view(spec.torch_dtype).view(spec.shape)))
        offset += spec.room
    return tensors
