"""Limits the memory of a process that runs a stranger's program."""

import resource
from pathlib import Path


def limit_memory(more: int) -> None:
    """Sets the address space to what the process has now and `more` bytes, beyond which Python raises MemoryError; no
    core is dumped."""
    _limit(resource.RLIMIT_AS, 0, more)


def limit_data(more: int) -> None:
    """As `limit_memory`, of writable memory of the process's own: address space that is only reserved, as by CUDA, is
    not counted."""
    _limit(resource.RLIMIT_DATA, 5, more)


def _limit(kind: int, place: int, more: int) -> None:
    """`place`: of the number of pages that count, in Linux's `statm`."""
    size = int(Path("/proc/self/statm").read_text().split()[place]) * resource.getpagesize()
    resource.setrlimit(kind, (size + more, size + more))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
