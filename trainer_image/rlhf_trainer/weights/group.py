"""Weight group of one membership epoch: a store for messages and a process group for broadcasts.

Whoever reaches the store may write there. So each message has an HMAC with the epoch's secret, which its members get
with their invitation, a request with the job's token. Without it one can stop an epoch, but send nothing that is read.
"""

import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import BroadcastOptions, Work

from ..transport.tcp_store import tcp_store
from .process_group import connect
from .same_gpu import SameGpu, Sending, Window, find_place

CURRENT = "rlhf/epoch"  # store key: the only epoch that may be joined
MAC_BYTES = 64  # hexadecimal, before each message
ABORTED = "aborted"  # key of an epoch: the trainer has abandoned it
EPOCH_CHARACTERS = 64  # of what the store says, in a message
POLL_S, MAX_POLL_S, ABORT_POLL_S = 0.00005, 0.01, 0.05


class TransferFailed(RuntimeError):
    """A member did not join, died or was late, or the trainer aborted. The epoch is unusable."""


def host_store(host: str, timeout_s: float) -> TCPStore:
    """The trainer's store, at a free port, for the whole run."""
    return tcp_store(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def publish_epoch(store: TCPStore, epoch: str) -> None:
    """Makes `epoch` the only one that may be joined."""
    store.set(CURRENT, epoch)


def connect_store(host: str, port: int, epoch: str, timeout_s: float) -> TCPStore:
    """The trainer's store, for a worker that was asked to join `epoch`.

    Raises:
        TransferFailed: the epoch is over. The request may have waited in a server that hung.
    """
    store = TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    current = store.get(CURRENT).decode(errors="replace")[:EPOCH_CHARACTERS]
    if current != epoch:
        raise TransferFailed(
            f"weight epoch {epoch} is over (the trainer is at {current!r}): this request came too late"
        )
    return store


class Group:
    """Rank `rank` of `size` in `epoch`; rank 0, the trainer, sends, the others receive: those on its own GPU by copies
    from its memory (`SameGpu`), the others by a process group.

    Whatever fails, here and in every method, raises TransferFailed, `timeout_s` after it began at the latest.
    `check` is called while the trainer waits and may raise to give up early.
    """

    def __init__(
        self,
        store: TCPStore,
        epoch: str,
        secret: str,
        rank: int,
        size: int,
        timeout_s: float,
        device: torch.device,
        check: Callable[[], None] = lambda: None,
        window: Window | None = None,
    ) -> None:
        """`window`: the trainer's, for receivers on its GPU."""
        self._store, self._secret = PrefixStore(f"rlhf/{epoch}", store), secret.encode()
        self._rank, self._timeout_s = rank, timeout_s
        self.device = device
        self._travelling: list[tuple[Broadcast, Tensor]] = []
        self._aborted = False
        self._same_gpu: SameGpu | None = None
        self._group: Any = None
        with _failing("joining the weight group"):
            self._assemble(size, check)
            self._connect(size, store.host, window)

    def _assemble(self, size: int, check: Callable[[], None]) -> None:
        # Connecting blocks until the deadline if a member is missing: so wait until all are here first.
        if self._rank:
            self._store.add("ready", 1)
            self.wait_for_value("go")
            return
        try:
            self._until(lambda: self._store.add("ready", 0) == size - 1, "not all workers joined", check)
        except BaseException:
            self._store.set(ABORTED, "1")
            raise
        self.publish_value("go", True)

    def _connect(self, size: int, host: str, window: Window | None) -> None:
        """Connects each member with rank 0, by the GPUs that the members name."""
        place = find_place(self.device)
        self.publish_value(f"place/{self._rank}", place)
        places = [self.wait_for_value(f"place/{rank}") for rank in range(size)]
        near = {rank for rank in range(1, size) if place and places[rank] == places[0]}
        far = [rank for rank in range(size) if rank not in near]
        if near and self._rank in (0, *near):
            self._same_gpu = SameGpu(
                self._store,
                self.publish_value,
                self.wait_for_value,
                receivers=len(near),
                window=None if self._rank else window or Window(self.device),
            )
        if len(far) > 1 and self._rank in far:
            rank = far.index(self._rank)
            self._group = connect(
                *(self._store, rank, len(far)), timeout_s=self._timeout_s, device=self.device, host=host
            )

    def _until(
        self, done: Callable[[], bool], problem: str, check: Callable[[], None] = lambda: None
    ) -> None:
        began = time.monotonic()
        look_again = ABORT_POLL_S
        while not done():
            check()
            if self._aborted:
                raise TransferFailed("this member gave the epoch up")
            waited = time.monotonic() - began
            if waited > self._timeout_s:
                raise TransferFailed(f"{problem} within {self._timeout_s:g} s")
            if self._rank and waited > look_again:
                # gloo's peers notice a closed connection; NCCL's, over NVLink, notice nothing.
                if self._store.check([ABORTED]):
                    raise TransferFailed("the trainer gave this epoch up")
                look_again = waited + ABORT_POLL_S
            time.sleep(max(POLL_S, min(MAX_POLL_S, waited / 8)))

    def publish_value(self, key: str, message: Any) -> None:
        """Publishes a JSON value under a key of this epoch."""
        with _failing("publishing to the workers"):
            text = json.dumps(message)
            self._store.set(key, self._mac(key, text) + text)

    def wait_for_value(self, key: str) -> Any:
        """Waits for the value that the trainer publishes under `key` with `publish_value`."""
        with _failing("waiting for the trainer"):
            self._until(lambda: self._store.check([key]), "the trainer sent nothing")
            value = self._store.get(key)
        mac, text = value[:MAC_BYTES], value[MAC_BYTES:].decode(errors="replace")
        if not hmac.compare_digest(mac, self._mac(key, text).encode()):
            raise TransferFailed(f"somebody else than the trainer wrote {key!r} into its store")
        return json.loads(text)

    def _mac(self, key: str, text: str) -> str:
        return hmac.new(self._secret, f"{key}\n{text}".encode(), "sha256").hexdigest()

    def forget(self, key: str) -> None:
        with _failing("tidying the store"):
            self._store.delete_key(key)

    def broadcast(self, tensor: Tensor) -> "Broadcast":
        """Starts a broadcast of rank 0's `tensor`, which must not be modified until `wait` returns."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=self._timeout_s)
        works: list[Work | Sending] = []
        with _failing("starting a broadcast"):
            if self._group is not None:
                works.append(self._group.broadcast([tensor], options))
            if self._same_gpu is not None and (sending := self._same_gpu.broadcast(tensor)) is not None:
                works.append(sending)
        broadcast = Broadcast(works)
        self._travelling.append((broadcast, tensor))
        return broadcast

    def wait(self, work: "Broadcast", check: Callable[[], None] = lambda: None) -> None:
        """Returns when `work` is done."""
        # NCCL's own wait does not block and its watchdog would kill the process: so this deadline for both.
        with _failing("a broadcast"):
            self._until(work.is_completed, "a broadcast did not finish", check)
            work.wait()
        self._travelling = [(other, tensor) for other, tensor in self._travelling if other is not work]

    def abort(self) -> None:
        """Aborts the epoch without waiting; this frees members that wait in other threads, and, on the trainer, all
        members."""
        if self._aborted:
            return
        self._aborted = True
        if self._rank == 0:
            self._store.set(ABORTED, "1")
        if self._same_gpu is not None:
            self._same_gpu.close()
        if self._group is None:
            return
        self._group.abort()
        if self._travelling and self.device.type == "cpu":
            # gloo's abort cancels nothing, and destroying a group waits for what is under way: let another thread.
            threading.Thread(target=_outlive, args=(self._group, self._travelling), daemon=True).start()


class Broadcast:
    """A broadcast under way, to the members of a process group and to those on the trainer's GPU."""

    def __init__(self, works: "list[Work | Sending]") -> None:
        self._works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _outlive(_group: Any, travelling: list[tuple[Broadcast, Tensor]]) -> None:
    for work, _ in travelling:
        with suppress(RuntimeError):
            work.wait()


@contextmanager
def _failing(what: str) -> Iterator[None]:
    try:
        yield
    except TransferFailed:
        raise
    except RuntimeError as error:  # all that torch.distributed raises
        raise TransferFailed(f"{what} failed: {error}") from error
