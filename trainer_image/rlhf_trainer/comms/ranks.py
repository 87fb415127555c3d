"""Collectives of the trainer's ranks: rank 0's messages to all, flags and small arrays of each."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .wire import decode, encode

Message = tuple[dict[str, Tensor], dict[str, Any]]
SideGroup = dist.ProcessGroup

GANG_TIMEOUT = timedelta(hours=2)
"""Deadline of a collective for a rank that hangs; one that ended is noticed by its connections at once."""
HEARTBEAT_SECONDS = 30.0
"""Interval at which rank 0 tells the others that it still works on what they wait for; well below `GANG_TIMEOUT`."""
HEARTBEAT = -1
"""Sent in place of a message's size."""
GLOO = "gloo/transport"
"""In each of gloo's messages about a lost connection, which have no type of their own."""


class RankLost(RuntimeError):
    """Another rank ended in the middle of something that all do together."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among the trainer's ranks."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Rank 0 drives: it alone talks to other roles and writes files."""
        return self.rank == 0

    @classmethod
    def join(cls, local_rank: int) -> "Ranks":
        """Meets the other ranks under torchrun's environment: NCCL for CUDA tensors, gloo for the others."""
        if torch.cuda.is_available():
            device, backend = torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device)
        else:
            device, backend = torch.device("cpu"), "gloo"
        dist.init_process_group(backend, timeout=GANG_TIMEOUT)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @contextmanager
    def raise_if_rank_lost(self) -> Iterator[None]:
        """Turns a backend's error about a connection into RankLost, in whatever the ranks do in here together."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and GLOO not in str(error):
                raise
            raise RankLost(
                f"another rank of the trainer has ended, see the log of its pod or process ({error})"
            ) from error

    def share(self, make: Callable[[], Message]) -> Message:
        """Broadcast of what `make` returns on rank 0, where alone it runs, for as long as it takes."""
        if self.world == 1:
            return make()
        if self.first:
            with self._heartbeat():
                message = make()
            self._broadcast(encode(*message))
            return message
        return decode(self._broadcast(None))

    def agree(self, flag: Callable[[], bool]) -> bool:
        """Broadcast of rank 0's flag."""
        return bool(self.share(lambda: ({}, {"flag": flag()}))[1]["flag"])

    def any(self, flag: bool) -> bool:
        """Logical or of all ranks' flags, on every rank."""
        if self.world == 1:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def side_group(self) -> SideGroup | None:
        """Process group of the ranks' background threads; None for one rank. A collective."""
        return dist.new_group(backend="gloo", timeout=GANG_TIMEOUT) if self.world > 1 else None

    def gather(
        self, arrays: Mapping[str, Tensor], beside: SideGroup | None = None
    ) -> list[dict[str, Tensor]]:
        """Every rank's arrays, in rank order, on every rank. Meant for small things such as generator states."""
        if self.world == 1:
            return [dict(arrays)]
        mine = torch.frombuffer(bytearray(encode(arrays)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        dist.all_gather(sizes, torch.tensor([len(mine)]), beside)
        longest = int(max(sizes))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = mine
        everyone = [torch.empty(longest, dtype=torch.uint8) for _ in range(self.world)]
        dist.all_gather(everyone, padded, beside)
        return [decode(bytes(data[: int(n)].numpy()))[0] for data, n in zip(everyone, sizes, strict=True)]

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Broadcasts `HEARTBEAT` from a thread while rank 0 works alone, so that nobody's wait for it times out.

        All others are in `_broadcast` then: the order of collectives stays the same on every rank. Raises what the
        thread met, such as the loss of a rank.
        """
        over, met = threading.Event(), list[RuntimeError]()

        def beat() -> None:
            try:
                while not over.wait(HEARTBEAT_SECONDS):
                    dist.broadcast(torch.tensor([HEARTBEAT]), src=0)
            except RuntimeError as error:
                met.append(error)

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
        thread.join()
        if met:
            raise met[0]

    def _broadcast(self, data: bytes | None) -> bytes:
        size = torch.tensor([len(data) if data is not None else HEARTBEAT])
        dist.broadcast(size, src=0)
        while int(size) == HEARTBEAT:
            dist.broadcast(size, src=0)
        buffer = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(int(size), dtype=torch.uint8)
        )
        dist.broadcast(buffer, src=0)
        return data if data is not None else bytes(buffer.numpy())
