"""Out-of-memory kills, as the kernel counts them: a process that ends by SIGKILL cannot say why itself."""

from pathlib import Path


class OomKills:
    """Compares the kernel's count now with that when this was made."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._before = count(root)

    def words(self) -> str:
        """To follow the words of a death by SIGKILL; empty where no such kill was counted."""
        now = count(self._root)
        if self._before is None or now is None or now <= self._before:
            return ""
        return f" for lack of memory (the kernel's count of out-of-memory kills rose by {now - self._before})"


def count(root: Path = Path("/")) -> int | None:
    """Out-of-memory kills so far in this process's control group and those below it. Where the kernel keeps no such
    count (the root group, version 1), those of the whole machine; None where that cannot be read either."""
    group = next((line[3:] for line in _lines(root / "proc/self/cgroup") if line.startswith("0::")), "/")
    for file in (root / "sys/fs/cgroup" / group.strip("/") / "memory.events", root / "proc/vmstat"):
        for line in _lines(file):
            name, _, number = line.partition(" ")
            if name == "oom_kill" and number.isdecimal():
                return int(number)
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
