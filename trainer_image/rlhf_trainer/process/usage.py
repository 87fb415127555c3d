"""CPU time and waiting time of processes with all their descendants, and the kernel's kills for lack of memory. Imports
no torch."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.host.reaper import descendants

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Usage:
    """Seconds: `computed` on any CPU, of all processes together, those that have ended included; `waited` for a CPU,
    of the thread that waited longest."""

    computed: float = 0.0
    waited: float = 0.0


def usage(roots: Iterable[int]) -> Usage:
    """The usage of the processes with these ids and of their descendants, without those that cannot be read."""
    computed = waited = 0.0
    for root in roots:
        for process in (Path("/proc", str(pid)) for pid in (root, *descendants(root))):
            with suppress(OSError):
                fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
                computed += sum(map(int, fields[11:15])) / _TICKS  # also of children that it has waited for
                waited = max([waited, *map(_waited, (process / "task").iterdir())])
    return Usage(computed, waited)


def spent(used: Usage, passed: float) -> float:
    """Seconds of its time limit that a program has spent: those that `passed` without a wait for a CPU; at least the
    CPU time of its processes, who may wait for each other."""
    return max(passed - used.waited, used.computed)


def out_of_memory_kills() -> int:
    """Number of processes that the kernel has killed for lack of memory, on this machine or in a container of it, since
    it started. Reads the field `oom_kill` of /proc/vmstat; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _waited(thread: Path) -> float:
    """Second field of schedstat: nanoseconds in a CPU's queue."""
    with suppress(OSError):
        return int((thread / "schedstat").read_text().split()[1]) / 1e9
    return 0.0
