"""The termination message of a process: one line in the file where its host looks for why it ended."""

import logging
import os
from pathlib import Path

VARIABLE = "RLHF_TERMINATION_LOG"
log = logging.getLogger("rlhf")


def write(message: str, file: str | None = None) -> None:
    """Leaves `message` in `file`, by default in that of the environment; the first one stands, it is the cause."""
    path = _path(file)
    try:
        if not written(file):
            path.write_text(" ".join(message.split("\n"))[:4000] + "\n")
    except OSError as error:  # the exit code says as much, and the log more
        log.error("%s cannot be written: %s", path, error.strerror)


def written(file: str | None = None) -> bool:
    """True if a process has left its message."""
    path = _path(file)
    return path.is_file() and path.stat().st_size > 0


def _path(file: str | None) -> Path:
    return Path(file or os.environ.get(VARIABLE, os.devnull))
