"""Free space of the file systems that a job's processes write to: an error about a full one rarely says which."""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def room(folders: Iterable[Path]) -> str:
    """The free space of each file system, the fullest first: `free: 0 GB in /dev/shm, 35 GB in /tmp`."""
    file_systems: dict[int, tuple[int, Path]] = {}
    for folder in folders:
        with suppress(OSError):
            file_systems.setdefault(folder.stat().st_dev, (shutil.disk_usage(folder).free, folder))
    return "free: " + ", ".join(
        f"{free / 1e9:.3g} GB in {folder}" for free, folder in sorted(file_systems.values())
    )
