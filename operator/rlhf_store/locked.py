"""One process at a time in a directory, on one machine or on a file system whose locks reach all that mount it."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_SECONDS = 30.0
_POLL_SECONDS = 0.01
LOCK = ".lock"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Raises OSError where another process holds it for longer than anything here takes."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    with (directory / LOCK).open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
        yield  # closing the file, or the end of this process, gives the lock back
