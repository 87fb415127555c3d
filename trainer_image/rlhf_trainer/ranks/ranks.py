"""Collectives of the trainer's ranks: broadcasts of rank 0, flags, and gathers of small arrays."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from ..process import progress
from ..transport.wire import decode, encode
from .heartbeat import HEARTBEAT, Heartbeat

log = logging.getLogger(__name__)

Message = tuple[dict[str, Tensor], dict[str, Any]]
SideGroup = dist.ProcessGroup

GANG_TIMEOUT = timedelta(hours=2)
"""Deadline of a collective, for ranks that hang; ranks that end are detected by their connections at once."""
STOP_SECONDS = 1.0
"""Interval at which ranks exchange stop requests and signs of progress, seconds; well below a host's grace period."""
_DTYPES = {
    str(dtype): dtype
    for dtype in (
        *(torch.int64, torch.int32, torch.int16, torch.uint8),
        *(torch.float32, torch.float64, torch.bool),
    )
}
"""Dtypes that `share` can broadcast."""
GLOO = "gloo/transport"
"""Substring of gloo's lost-connection errors, which have no type of their own."""
OWN_LIMIT = "Too many open files"
"""Substring of those of gloo's errors that are about this process and no other."""


class RankLost(RuntimeError):
    """Another rank ended during a collective."""


@contextmanager
def raise_if_rank_lost() -> Iterator[None]:
    """Turns a backend's connection error inside the context into RankLost."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or GLOO in str(error)
        if not lost or OWN_LIMIT in str(error):
            raise
        raise RankLost(
            f"another rank of the trainer has ended or is not reached, see the log of its pod or process ({error})"
        ) from error


@dataclass(frozen=True)
class Ranks:
    """This process's place among the trainer's ranks."""

    rank: int
    world: int
    device: torch.device
    _heartbeat: Heartbeat = field(default_factory=Heartbeat, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """True on rank 0, which alone talks to other roles and writes files."""
        return self.rank == 0

    @classmethod
    def join(cls, local_rank: int) -> "Ranks":
        """Initialises the process groups from torchrun's environment: NCCL for CUDA tensors, gloo for CPU tensors."""
        if torch.cuda.is_available():
            device, backend = torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device)
        else:
            device, backend = torch.device("cpu"), "gloo"
        with raise_if_rank_lost():
            if os.environ["WORLD_SIZE"] == "1":  # nobody comes: nothing listens for them
                dist.init_process_group(
                    backend, timeout=GANG_TIMEOUT, store=HashStore(), rank=0, world_size=1
                )
            else:
                dist.init_process_group(backend, timeout=GANG_TIMEOUT)
        return cls(dist.get_rank(), dist.get_world_size(), device)

    def share(self, make: Callable[[], Message]) -> Message:
        """Broadcast of the message that `make` returns; `make` runs on rank 0 only, for any time. On the CPU."""
        if self.world == 1:
            return make()
        if self.first:
            with self._heartbeat.while_working():
                arrays, header = make()
            # Each array is sent from its own memory: a copy could be gigabytes.
            whole = {name: array.detach().cpu().contiguous() for name, array in arrays.items()}
            layouts = [[name, str(array.dtype), list(array.shape)] for name, array in whole.items()]
            self._broadcast_text(json.dumps([header, layouts]))
        else:
            header, layouts = json.loads(self._broadcast_text(None))
            whole = {name: torch.empty(shape, dtype=_DTYPES[dtype]) for name, dtype, shape in layouts}
        for array in whole.values():
            if array.numel():
                dist.broadcast(array.view(-1).view(torch.uint8), src=0)
        return whole, header

    def agree(self, flag: Callable[[], bool]) -> bool:
        """Broadcast of rank 0's flag."""
        return bool(self.share(lambda: ({}, {"flag": flag()}))[1]["flag"])

    def broadcast_str(self, word: Callable[[], str]) -> str:
        """Broadcast of rank 0's string."""
        return str(self.share(lambda: ({}, {"word": word()}))[1]["word"])

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

    def watch_each_other(self, stop: threading.Event) -> None:
        """Starts a thread that sets `stop` on every rank soon after it was set on one, and gives a sign of progress on
        rank 0, which the host asks, for those of the others: they may load a model for longer. A collective.

        The ranks see the stop at different steps of the run, so they still have to agree on where to stop.
        """
        group = self.side_group()
        if group is None:
            return

        def watch() -> None:
            stopping, count = False, progress.count()
            try:
                while not stopping:
                    time.sleep(STOP_SECONDS)
                    before, count = count, progress.count()
                    flags = torch.tensor([stop.is_set(), count != before and not self.first]).int()
                    dist.all_reduce(flags, dist.ReduceOp.MAX, group)
                    stopping = bool(flags[0])
                    if self.first and flags[1]:
                        progress.sign()
            except RuntimeError as error:  # at shutdown; else the main thread's next collective fails
                log.debug("stops of other ranks are not heard of any more: %s", error)
            else:
                stop.set()

        threading.Thread(target=watch, name="ranks-watch", daemon=True).start()

    def gather(
        self, arrays: Mapping[str, Tensor], beside: SideGroup | None = None
    ) -> list[dict[str, Tensor]]:
        """All-gather of every rank's arrays, in rank order. For small tensors such as generator states."""
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

    def _broadcast_text(self, text: str | None) -> str:
        data = text.encode() if text is not None else None
        size = torch.tensor([len(data) if data is not None else HEARTBEAT])
        dist.broadcast(size, src=0)
        while int(size) == HEARTBEAT:
            dist.broadcast(size, src=0)
        buffer = bytearray(data if data is not None else int(size))
        dist.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), src=0)
        return buffer.decode()
