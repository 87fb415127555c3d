"""Packed arrays: the values of N sequences end to end in one dimension, without padding, with their lengths."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

_DTYPES = {"i": torch.int32, "q": torch.int64, "f": torch.float32}
"""By the type codes of arrays."""


def flat_ints(parts: Iterable[Sequence[int]]) -> Tensor:
    """Concatenates int32 arrays, or other int sequences: int64 [sum of their lengths]."""
    return _flat(parts, torch.int64)


def flat_int32s(parts: Iterable[Sequence[int]]) -> Tensor:
    """As `flat_ints`, in half of the memory: int32."""
    return _flat(parts, torch.int32)


def flat_floats(parts: Iterable["array[float]"]) -> Tensor:
    """Concatenates float32 arrays: float32 [sum of their lengths]."""
    return _flat(parts, torch.float32)


def flat_flags(parts: Sequence[tuple["array[int]", int]]) -> Tensor | None:
    """Concatenates int8 arrays of flags, given with their lengths; an empty array is of true flags only: bool [sum of
    the lengths]. None where all are empty."""
    if not any(flags for flags, _ in parts):
        return None
    whole = bytearray().join(flags.tobytes() or bytes([1]) * length for flags, length in parts)
    return torch.frombuffer(whole, dtype=torch.bool)


def flat_places(parts: Sequence[tuple["array[int]", int]]) -> Tensor | None:
    """Flags of `length` values each, true at the places of an int array, end to end: bool [sum of the lengths]. None
    where no array has any."""
    if not any(places for places, _ in parts):
        return None
    flags = [torch.zeros(length, dtype=torch.bool) for _, length in parts]
    for each, (places, _) in zip(flags, parts, strict=True):
        each[list(places)] = True
    return torch.cat(flags)


def _flat(parts: Iterable[Sequence[Any]], dtype: torch.dtype) -> Tensor:
    parts = list(parts)
    lengths = [*map(len, parts)]
    whole = torch.empty(sum(lengths), dtype=dtype)
    for part, place in zip(parts, whole.split(lengths), strict=True):
        # Cast during the copy: a step's responses take gigabytes already.
        place.copy_(_view(part))
    return whole


def _view(values: Sequence[Any]) -> Tensor:
    """A tensor view of an array, without a copy; other sequences are treated as ints."""
    own = values if isinstance(values, array) else array("q", values)
    return torch.frombuffer(own, dtype=_DTYPES[own.typecode]) if own else torch.empty(0, dtype=torch.int64)


def ragged_index(starts: Tensor, lengths: Tensor) -> Tensor:
    """Positions `starts[i], starts[i] + 1, ... starts[i] + lengths[i] - 1` of every i, end to end.

    Shapes: two int64 [N] -> int64 [sum(lengths)].
    """
    ends = lengths.cumsum(0)
    first = torch.repeat_interleave(starts - (ends - lengths), lengths)
    return first + torch.arange(int(ends[-1]) if len(ends) else 0)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A CPU tensor on `device`, in the order of its stream: from pinned memory, so that the host goes on at once. From
    pageable memory it would wait for all kernels that the GPU has yet to run. An expanded tensor, several of whose
    elements share their memory, is copied first: it cannot be pinned."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)
