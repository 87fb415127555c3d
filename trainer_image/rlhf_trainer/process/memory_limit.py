"""Limits the memory of a process that runs a stranger's program."""

import resource
from pathlib import Path


def limit_memory(more: int) -> None:
    """Sets the address space to what the process has now and `more` bytes, beyond which Python raises MemoryError; no
    core is dumped."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, size + more))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_data(more: int) -> None:
    """As `limit_memory`, of writable memory of the process's own: address space that is only reserved, as by CUDA, is
    not counted."""
    size = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (size + more, size + more))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
