"""File lock between processes, on one machine or on a shared file system with locks."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_SECONDS = 30.0
"""Default timeout, seconds; longer than a store holds its lock."""
_POLL_SECONDS = 0.01


@contextmanager
def locked(path: Path, seconds: float = DEADLINE_SECONDS) -> Iterator[None]:
    """Holds a lock on the file `path`, created if missing. Raises TimeoutError if it is not free within `seconds`."""
    deadline = time.monotonic() + seconds
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"another process has held the lock {path} for {seconds:g} s"
                    ) from None
                time.sleep(_POLL_SECONDS)
        yield  # closing the file, or the end of this process, releases the lock
