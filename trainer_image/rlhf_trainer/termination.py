"""Termination message of a process: one line in a file in which its host looks for the cause."""

import logging
import os
from pathlib import Path

VARIABLE = "RLHF_TERMINATION_LOG"
log = logging.getLogger("rlhf")


def write(message: str, file: str | None = None) -> None:
    """Writes `message` to `file` (default: the environment's), unless one is there already: the first is the cause."""
    path = _path(file)
    try:
        if not written(file):
            path.write_text(" ".join(message.split("\n"))[:4000] + "\n")
    except OSError as error:  # the exit code and the log still tell
        log.error("%s cannot be written: %s", path, error.strerror)


def written(file: str | None = None) -> bool:
    """True if a process has written its message."""
    path = _path(file)
    return path.is_file() and path.stat().st_size > 0


def _path(file: str | None) -> Path:
    return Path(file or os.environ.get(VARIABLE, os.devnull))
