"""Makes written files survive a loss of power."""

import os
from contextlib import suppress
from pathlib import Path


def make_durable(file: Path) -> None:
    """Waits until the file and its name are on disk. Raises OSError if the file cannot be written there."""
    _sync(file)
    with suppress(OSError):  # of file systems that know no sync of a folder, such as some network mounts
        _sync(file.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
