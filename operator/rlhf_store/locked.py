"""One process at a time, on one machine or on a file system whose locks reach all that mount it."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_SECONDS = 30.0
"""Longer than anything that a store does under its lock takes."""
_POLL_SECONDS = 0.01


@contextmanager
def locked(path: Path, seconds: float = DEADLINE_SECONDS) -> Iterator[None]:
    """Hold the file `path`, made where it is missing. Raises TimeoutError where others hold it for `seconds`."""
    deadline = time.monotonic() + seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"others have held {path} for {seconds:g} s") from None
                time.sleep(_POLL_SECONDS)
        yield  # closing the file, or the end of this process, gives the lock back
