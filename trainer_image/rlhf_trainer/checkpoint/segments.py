"""Splits tensors into segments of bounded size, copied so that training can go on."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SEGMENT_BYTES = 64 << 20
"""Size of a segment in bytes. Four are uploaded at once, each of them briefly three times in memory."""

Group = Iterable[tuple[str, Tensor]]
Batch = dict[str, Tensor]


def copied(groups: Mapping[str, Group], rank: int = 0, ranks: int = 1) -> Iterator[tuple[int, str, Batch]]:
    """This rank's share of all tensors, as (number of the segment, group, copies on the CPU); a collective.

    All ranks iterate over all tensors, which gathers them; each copies every `ranks`-th segment.
    """
    number = 0
    for group, tensors in groups.items():
        batch, size, count = Batch(), 0, 0
        for name, tensor in tensors:
            if number % ranks == rank:
                batch[name] = _copy(tensor)
            size, count = size + tensor.nbytes, count + 1
            if size >= SEGMENT_BYTES:
                if batch:
                    yield number, group, batch
                number, batch, size, count = number + 1, Batch(), 0, 0
        if batch:
            yield number, group, batch
        number += count > 0


def kind_checksums(batch: Batch) -> dict[str, int]:
    """CRC-32 of the tensors of each kind: of names with the same part before the slash."""
    sums = dict[str, int]()
    for name, tensor in batch.items():
        kind, slash, _ = name.partition("/")
        if slash:
            sums[kind] = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, sums.get(kind, 0))
    return sums


@dataclass(frozen=True)
class Checksums:
    """Of one snapshot: the updates of each group so far, and the checksums of each kind in the order of segments."""

    updates: Mapping[str, int]
    sums: Mapping[tuple[str, str], list[int]]


def unchanged_kinds(before: Checksums, now: Checksums) -> list[str]:
    """Kinds, each with its group, whose tensors are those of the snapshot before, though every kind of the group has
    been updated since."""
    return [
        f"{group}/{kind}"
        for (group, kind), sums in now.sums.items()
        if now.updates.get(group, 0) > before.updates.get(group, 0) and before.sums.get((group, kind)) == sums
    ]


def _copy(tensor: Tensor) -> Tensor:
    """A copy that later training steps do not modify."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        return tensor.cpu().contiguous()
    return tensor.clone(memory_format=torch.contiguous_format)
