"""Rank 0's sign of life to the ranks that wait for its next message."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
import torch.distributed as dist

HEARTBEAT = -1
"""Sent instead of a message's size."""
HEARTBEAT_SECONDS = 30.0
"""Interval, seconds; well below a collective's deadline."""


class Heartbeat:
    """Broadcasts `HEARTBEAT` from a thread while rank 0 works alone, so that the waiting ranks do not time out.

    All heartbeats have one thread: where there is no memory for a new one, Python's `Thread.start` never returns.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heartbeat")
        self._over = threading.Event()
        self._beating = Future[None]()
        self._beating.set_result(None)

    @contextmanager
    def while_working(self) -> Iterator[None]:
        """Heartbeats until the context ends, or until another begins within it: a message sent meanwhile has the other
        ranks do something else than wait for the outer one, and collectives have one order. Raises the thread's error,
        such as the loss of a rank.
        """
        self._stop()
        self._over = threading.Event()
        self._beating = self._thread.submit(_beat, self._over)
        try:
            yield
        finally:
            self._over.set()
        self._stop()

    def _stop(self) -> None:
        self._over.set()
        self._beating.result()


def _beat(over: threading.Event) -> None:
    while not over.wait(HEARTBEAT_SECONDS):
        dist.broadcast(torch.tensor([HEARTBEAT]), src=0)
