"""Counts a trainer's signs of progress, by which its host tells a long step from a hang.

A sign is given where work is done, such as for each micro-batch or token, and in each turn of a wait that has a
deadline of its own; by other threads than the one that trains only for work that ends by itself.
"""

import itertools
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

GROWTH_SECONDS = 5.0
"""Interval at which the sizes of files that a library writes are checked, seconds."""
_signs = itertools.count(1)
_count, _last = 0, time.monotonic()
T = TypeVar("T")


def sign() -> None:
    """Counts one more sign of progress; on any thread."""
    global _count, _last
    _count, _last = next(_signs), time.monotonic()


def count() -> int:
    """Signs since the process began."""
    return _count


def silent_seconds() -> float:
    """Time since the last sign, or since the process began."""
    return time.monotonic() - _last


def each(items: Iterable[T]) -> Iterator[T]:
    """Yields the items, and counts each as a sign of progress."""
    for item in items:
        sign()
        yield item


@contextmanager
def growing(folder: Path) -> Iterator[None]:
    """Counts signs of progress from a thread while the files below `folder` grow, for a library that writes there
    without reporting."""
    over = threading.Event()

    def watch() -> None:
        size = _size(folder)
        while not over.wait(GROWTH_SECONDS):
            before, size = size, _size(folder)
            if size != before:
                sign()

    threading.Thread(target=watch, name="growth", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _size(folder: Path) -> tuple[int, int]:
    """Length of all files, and what they take on the disk: a file may be given its whole length first."""
    length = blocks = 0
    for place, _, names in os.walk(folder):  # which passes over a folder that is gone meanwhile
        for name in names:
            with suppress(OSError):
                status = Path(place, name).stat()
                length, blocks = length + status.st_size, blocks + status.st_blocks
    return length, blocks
