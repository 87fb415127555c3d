"""Termination message of a process: a file whose last line is the cause, for its host, below a traceback."""

import logging
import os
import traceback
from pathlib import Path

from rlhf_api.host.redaction import redacted, secrets_of

VARIABLE = "RLHF_TERMINATION_LOG"
log = logging.getLogger("rlhf")

_LONGEST = 4096
"""Bytes that a kubelet keeps of a termination message."""
_READ = 4 * _LONGEST
"""Characters in which secrets are looked for: a message may quote a whole dataset."""


def write(message: str, file: str | None = None, *, error: BaseException | None = None) -> None:
    """Writes `message` to `file` (default: the environment's), unless one is there already: the first is the cause.
    `error`: as many of its traceback's last lines as a kubelet keeps stand above. Without the values of this process's
    secret environment variables, and without what else looks like a secret."""
    path, secrets = _path(file), secrets_of(os.environ)
    line = redacted(" ".join(message[:_READ].split("\n")), secrets)[:4000].encode(errors="replace") + b"\n"
    trace = "".join(traceback.format_exception(error))[-_READ:] if error is not None else ""
    above = redacted(trace, secrets).encode(errors="replace")
    try:
        if not written(file):
            path.write_bytes(_last_lines(above, max(_LONGEST - len(line), 0)) + line)
    except OSError as failure:  # the exit code and the log still tell
        log.error("%s cannot be written: %s", path, failure.strerror)


def written(file: str | None = None) -> bool:
    """True if a process has written its message."""
    path = _path(file)
    return path.is_file() and path.stat().st_size > 0


def _last_lines(text: bytes, most: int) -> bytes:
    """The whole lines at the end of a text, of at most so many bytes together."""
    return text if len(text) <= most else text[len(text) - most :].partition(b"\n")[2]


def _path(file: str | None) -> Path:
    return Path(file or os.environ.get(VARIABLE, os.devnull))
