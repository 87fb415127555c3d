"""Termination message of a process: a file whose last line is the cause, for its host, below a traceback."""

import logging
import os
import traceback
from pathlib import Path

VARIABLE = "RLHF_TERMINATION_LOG"
log = logging.getLogger("rlhf")

_LONGEST = 4096
"""Bytes that a kubelet keeps of a termination message."""


def write(message: str, file: str | None = None, *, error: BaseException | None = None) -> None:
    """Writes `message` to `file` (default: the environment's), unless one is there already: the first is the cause.
    `error`: as much of its traceback's end as a kubelet keeps stands above."""
    path, line = _path(file), (" ".join(message.split("\n"))[:4000] + "\n").encode(errors="replace")
    trace = "".join(traceback.format_exception(error)).encode(errors="replace") if error is not None else b""
    try:
        if not written(file):
            path.write_bytes(trace[max(len(trace) + len(line) - _LONGEST, 0) :] + line)
    except OSError as failure:  # the exit code and the log still tell
        log.error("%s cannot be written: %s", path, failure.strerror)


def written(file: str | None = None) -> bool:
    """True if a process has written its message."""
    path = _path(file)
    return path.is_file() and path.stat().st_size > 0


def _path(file: str | None) -> Path:
    return Path(file or os.environ.get(VARIABLE, os.devnull))
