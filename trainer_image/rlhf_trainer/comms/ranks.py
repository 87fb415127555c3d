"""The trainer's gang: which rank this is, and what rank 0 shares with the others."""

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
Beside = dist.ProcessGroup

GANG_TIMEOUT = timedelta(hours=2)
"""Longer than rank 0 may wait for generators and scorers; a rank that dies is noticed by torchrun, not by this."""
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
        """Whatever the ranks do in here together: raises RankLost where a backend has lost one of them."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, dist.DistError) and GLOO not in str(error):
                raise
            raise RankLost(
                f"another rank of the trainer has ended, see the log of its pod or process ({error})"
            ) from error

    def share(self, make: Callable[[], Message]) -> Message:
        """What `make` returns on rank 0, on every rank; it runs on rank 0 alone."""
        if self.world == 1:
            return make()
        if self.first:
            message = make()
            self._broadcast(encode(*message))
            return message
        return decode(self._broadcast(None))

    def agree(self, flag: Callable[[], bool]) -> bool:
        """Rank 0's answer, on every rank."""
        return bool(self.share(lambda: ({}, {"flag": flag()}))[1]["flag"])

    def any(self, flag: bool) -> bool:
        """Whether any rank's flag is set, on every rank."""
        if self.world == 1:
            return flag
        flags = torch.tensor([int(flag)])
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags)

    def side_group(self) -> Beside | None:
        """For what one thread of each rank does together while their main threads do something else; a collective."""
        return dist.new_group(backend="gloo", timeout=GANG_TIMEOUT) if self.world > 1 else None

    def gather(self, arrays: Mapping[str, Tensor], beside: Beside | None = None) -> list[dict[str, Tensor]]:
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

    def _broadcast(self, data: bytes | None) -> bytes:
        size = torch.tensor([len(data) if data is not None else 0])
        dist.broadcast(size, src=0)
        buffer = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8)
            if data
            else torch.empty(int(size), dtype=torch.uint8)
        )
        dist.broadcast(buffer, src=0)
        return data if data is not None else bytes(buffer.numpy())
