"""Detects out-of-memory kills by the kernel's counters: a process killed by SIGKILL cannot report the reason itself."""

from pathlib import Path
from typing import NamedTuple


class OomKills:
    """Compares the kernel's present count with that at construction."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = count(root)

    def words(self) -> str:
        """Suffix for the message about a death by SIGKILL; empty if no OOM kill was counted."""
        now = count(self._root)
        if self._before is None or now is None or now.kills <= self._before.kills:
            return ""
        maybe, whose = ("", "kernel") if now.own else (" maybe", "machine")
        rose = now.kills - self._before.kills
        return f"{maybe} for lack of memory (the {whose}'s count of out-of-memory kills rose by {rose})"


class Count(NamedTuple):
    """Number of OOM kills so far: in this process's control group and those below it (`own`), else on the machine."""

    kills: int
    own: bool


def count(root: Path = Path("/")) -> Count | None:
    """Number of OOM kills in this process's control group; of the whole machine if the kernel keeps none for it (the
    root group, cgroup v1); None if that cannot be read either."""
    group = next((line[3:] for line in _lines(root / "proc/self/cgroup") if line.startswith("0::")), "/")
    files = {root / "sys/fs/cgroup" / group.strip("/") / "memory.events": True, root / "proc/vmstat": False}
    for file, own in files.items():
        for line in _lines(file):
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdecimal():
                return Count(int(number), own)
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
