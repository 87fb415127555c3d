"""One update on the wire: before each bucket its table through the store, then its bytes by broadcast."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .buckets import Bucket, Spec, pack
from .digest import Digest
from .group import Broadcast, Group, TransferFailed


@dataclass(frozen=True)
class Sent:
    """Summary of an update sent: digest, size in bytes, number of buckets, seconds."""

    digest: str
    nbytes: int
    buckets: int
    seconds: float


def send(
    group: Group,
    update: int,
    tensors: Iterable[tuple[str, Tensor]],
    bucket_bytes: int,
    check: Callable[[], None],
    fault: Callable[[str], None],
) -> Sent:
    """Sends `tensors` as update number `update`; a bucket is packed and hashed while the one before is on its way.

    Whatever happens `tensors` is exhausted: with ZeRO-3 the other ranks iterate in step.

    Raises:
        TransferFailed: see `Group`; and what `tensors`, `check` or `fault` raise.
    """
    began = time.monotonic()
    digest, nbytes, sent = Digest(), 0, 0
    travelling: Broadcast | None = None
    source = iter(tensors)
    try:
        for bucket in pack(source, bucket_bytes, group.device):
            fault(f"bucket:{sent}")
            group.publish_value(_key(update, sent), {"specs": [spec.json() for spec in bucket.specs]})
            work = group.broadcast(bucket.data)
            digest.update(bucket)
            nbytes += len(bucket.data)
            sent += 1
            if travelling:
                group.wait(travelling, check)
            travelling = work
        if travelling:
            group.wait(travelling, check)
        group.publish_value(_key(update, sent), {"end": True})
    finally:
        for _ in source:
            pass
    return Sent(digest.hexdigest(), nbytes, sent, time.monotonic() - began)


def clear(group: Group, update: int, sent: Sent) -> None:
    """Removes from the store what `send` put there, once every worker has it."""
    for bucket in range(sent.buckets + 1):
        group.forget(_key(update, bucket))


def receive(group: Group, update: int, most: float = math.inf) -> tuple[tuple[Bucket, ...], str]:
    """Receives the buckets of update number `update`, in memory of their own on the group's device, and their digest; a
    bucket is hashed while the next one is received.

    Raises:
        TransferFailed: see `Group`; or the buckets announced take more than `most` bytes.
    """
    buckets: list[Bucket] = []
    digest, room = Digest(), 0
    travelling: Broadcast | None = None
    while "end" not in (head := group.wait_for_value(_key(update, len(buckets)))):
        specs = tuple(Spec.from_json(row) for row in head["specs"])
        size = sum(spec.room for spec in specs)
        room += size
        if room > most:
            raise TransferFailed(
                f"the weights announced take {room} bytes, more than this model's {most:.0f}"
            )
        data = torch.empty(size, dtype=torch.uint8, device=group.device)
        work = group.broadcast(data)
        if travelling:
            group.wait(travelling)
            digest.update(buckets[-1])
        buckets.append(Bucket(specs, data))
        travelling = work
    if travelling:
        group.wait(travelling)
        digest.update(buckets[-1])
    return tuple(buckets), digest.hexdigest()


def _key(update: int, bucket: int) -> str:
    return f"{update}/{bucket}"
