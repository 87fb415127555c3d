"""The process group of one membership epoch: gloo on CPU, NCCL on GPU. Imports torch only."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, DistStoreError, PrefixStore, ProcessGroupGloo, TCPStore, Work

CURRENT = "rlhf/epoch"  # store key: the only epoch that may be joined
ABORTED = "aborted"  # key of an epoch: the trainer gave it up
POLL_S = 0.0005
ABORT_POLL_S = 0.05


class TransferFailed(RuntimeError):
    """A member did not come, died or was late, or the trainer gave up. The epoch is of no more use."""


def host_store(host: str, timeout_s: float) -> TCPStore:
    """The trainer's store, at a free port, for the whole run."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=timeout_s))


def publish_epoch(store: TCPStore, epoch: str) -> None:
    """From now on `epoch` can be joined and no other."""
    store.set(CURRENT, epoch)


def connect_store(host: str, port: int, epoch: str, timeout_s: float) -> TCPStore:
    """The trainer's store, for a worker that was asked to join `epoch`.

    Raises:
        TransferFailed: the epoch is over. The request may have waited in a server that hung.
    """
    store = TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
    current = store.get(CURRENT).decode()
    if current != epoch:
        raise TransferFailed(
            f"weight epoch {epoch} is over (the trainer is at {current}): this request came too late"
        )
    return store


class Group:
    """Rank `rank` of `size` in `epoch`; rank 0, the trainer, sends, the others receive.

    Whatever fails, here and in every method, raises TransferFailed, `timeout_s` after it began at the latest.
    `check` is called while the trainer waits and may raise to give up early.
    """

    def __init__(
        self,
        store: TCPStore,
        epoch: str,
        rank: int,
        size: int,
        timeout_s: float,
        device: torch.device,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = PrefixStore(f"rlhf/{epoch}", store)
        self._rank, self._timeout_s = rank, timeout_s
        self.device = device
        self._travelling: list[tuple[Work, Tensor]] = []
        make = _nccl if device.type == "cuda" else _gloo
        with _failing("joining the weight group"):
            self._assemble(size, check)
            self._group = make(self._store, rank, size, timeout_s, device, store.host)

    def _assemble(self, size: int, check: Callable[[], None]) -> None:
        # Connecting blocks until the deadline where someone is missing: so nobody begins before all are here.
        if self._rank:
            self._store.add("ready", 1)
            self.hear("go")
            return
        deadline = time.monotonic() + self._timeout_s
        try:
            while (ready := self._store.add("ready", 0)) < size - 1:
                check()
                if time.monotonic() > deadline:
                    raise TransferFailed(f"{ready} of {size - 1} workers joined within {self._timeout_s:g} s")
                time.sleep(POLL_S)
        except BaseException:
            self._store.set(ABORTED, "1")
            raise
        self.tell("go", True)

    def tell(self, key: str, message: Any) -> None:
        """Publishes a JSON value under a key of this epoch."""
        with _failing("publishing to the workers"):
            self._store.set(key, json.dumps(message))

    def hear(self, key: str) -> Any:
        """The value that the trainer tells under `key`, as soon as it does."""
        deadline = time.monotonic() + self._timeout_s
        with _failing("waiting for the trainer"):
            while time.monotonic() < deadline:
                with suppress(DistStoreError):  # not there yet
                    self._store.wait([key], timedelta(seconds=ABORT_POLL_S))
                    return json.loads(self._store.get(key))
                self._heed_abort()
        raise TransferFailed(f"the trainer sent nothing for {self._timeout_s:g} s")

    def forget(self, key: str) -> None:
        with _failing("tidying the store"):
            self._store.delete_key(key)

    def broadcast(self, tensor: Tensor) -> Work:
        """Starts to send rank 0's `tensor` into everyone's; it must stay as it is until `wait` returns."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        options.timeout = timedelta(seconds=self._timeout_s)
        with _failing("starting a broadcast"):
            work = self._group.broadcast([tensor], options)
        self._travelling.append((work, tensor))
        return work

    def wait(self, work: Work, check: Callable[[], None] = lambda: None) -> None:
        """Returns when `work` is done."""
        # NCCL's own wait does not block and its watchdog would kill the process: so this deadline for both.
        now = time.monotonic()
        deadline, look = now + self._timeout_s, now + ABORT_POLL_S
        with _failing("a broadcast"):
            while not work.is_completed():
                check()
                now = time.monotonic()
                if now > deadline:
                    raise TransferFailed(f"a broadcast did not finish within {self._timeout_s:g} s")
                if self._rank and now > look:
                    self._heed_abort()
                    look = now + ABORT_POLL_S
                time.sleep(POLL_S)
            work.wait()
        self._travelling = [(other, tensor) for other, tensor in self._travelling if other is not work]

    def _heed_abort(self) -> None:
        # gloo's peers notice a closed connection; NCCL's, over NVLink, notice nothing.
        if self._store.check([ABORTED]):
            raise TransferFailed("the trainer gave this epoch up")

    def abort(self) -> None:
        """Gives the epoch up, without waiting; the trainer's abort also frees everyone who waits for it."""
        if self._rank == 0:
            self._store.set(ABORTED, "1")
        self._group.abort()
        if self._travelling:
            # gloo's abort cancels nothing, and destroying a group waits for what is under way: let another thread.
            threading.Thread(target=_outlive, args=(self._group, self._travelling), daemon=True).start()


def _outlive(_group: Any, travelling: list[tuple[Work, Tensor]]) -> None:
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


def _gloo(
    store: PrefixStore, rank: int, size: int, timeout_s: float, _device: torch.device, host: str
) -> ProcessGroupGloo:
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 2
    # Our address on the way to the trainer; gloo would take the host name's, which others may not reach.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        options._devices = [ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])]
    return ProcessGroupGloo(store, rank, size, options)


def _nccl(
    store: PrefixStore, rank: int, size: int, timeout_s: float, device: torch.device, _host: str
) -> Any:
    from torch.distributed import ProcessGroupNCCL  # not in torch's CPU build

    torch.cuda.set_device(device)
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=100 * timeout_s)  # the watchdog's, which must not come before ours
    before = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = (
        "0"  # read in the constructor: a lost peer must not end us
    )
    try:
        group = ProcessGroupNCCL(store, rank, size, options)
    finally:
        del os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
        if before is not None:
            os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = before
    group.eager_connect_single_device(device)
    return group
