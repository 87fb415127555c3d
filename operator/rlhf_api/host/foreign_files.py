"""Reads files that may be anybody's, such as a model's: regular ones, of a maximum size, JSON of numbers that exist."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

LARGEST_JSON = 64 << 20
"""Maximum size of a model's JSON, bytes; the largest tokenizers have half as much."""
_DIGITS = 19
"""Digits of the largest integer of 64 bits."""
READ_ERRORS = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors of reading a model's file: it cannot be read, or is not what its name says."""


def open_regular(file: Path) -> BinaryIO:
    """Opens a regular file; raises ValueError for a pipe or a device, which may have no end, and waits for none."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    raise ValueError("is not a regular file")


def read_regular(file: Path, most: int) -> bytes:
    """The content of a regular file. Raises ValueError for one of more bytes than `most`."""
    with open_regular(file) as opened:
        return read_at_most(opened, most)


def read_at_most(opened: BinaryIO, most: int) -> bytes:
    """The rest of an open file, which may be a pipe. Raises ValueError for more bytes than `most`."""
    data = opened.read(most + 1)
    if len(data) > most:
        size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
        raise ValueError(f"is larger than {size}")
    return data


def read_json(file: Path) -> Any:
    """The content of a JSON file. Raises OSError or ValueError, whatever is wrong."""
    return parse_json(read_regular(file, LARGEST_JSON))


def parse_json(data: bytes) -> Any:
    """Raises ValueError also for JSON that is nested too deeply, and for integers beyond 64 bits: calculations with
    those take as long as their author likes."""
    try:
        return json.loads(data, parse_int=_int)
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def _int(digits: str) -> int:
    if len(digits) > _DIGITS + 1:
        raise ValueError(f"a whole number of {len(digits)} digits is beyond 64 bits")
    return int(digits)
