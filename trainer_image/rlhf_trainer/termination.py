"""The termination message of a process: one line in the file where its host looks for why it ended."""

import logging
import os
from pathlib import Path

VARIABLE = "RLHF_TERMINATION_LOG"
log = logging.getLogger("rlhf")


def write(message: str, file: str | None = None) -> None:
    """Leaves `message` in `file`, by default in that of the environment; the first one stands, it is the cause."""
    path = Path(file or os.environ.get(VARIABLE, os.devnull))
    try:
        if not path.exists() or not path.stat().st_size:
            path.write_text(" ".join(message.split("\n"))[:4000] + "\n")
    except OSError as error:  # the exit code says as much, and the log more
        log.error("%s cannot be written: %s", path, error.strerror)
