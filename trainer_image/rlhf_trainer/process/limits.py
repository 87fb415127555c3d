"""Limits of the kernel on this process, and on a command and all that it starts; how much of them that has used.
Imports no torch."""

import errno
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TOOL = "prlimit"
_SPENT = (errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class Limits:
    """Of each process: megabytes of `address` space, or of writable memory of its own (`data`); seconds of CPU time;
    bytes of a file; open files. Of all together: `processes`, their threads counted. None: no limit.

    The kernel does not count the processes of root, of whatever namespace.
    """

    address: int | None = None
    data: int | None = None
    cpu_seconds: int | None = None
    file_bytes: int | None = None
    files: int | None = None
    processes: int | None = None

    def command(self) -> tuple[str, ...]:
        """The words in front of a command that set them; no core is dumped."""
        sizes = {"as": self.address, "data": self.data}
        values = {name: None if size is None else size << 20 for name, size in sizes.items()}
        values |= {"fsize": self.file_bytes, "nofile": self.files, "nproc": self.processes}
        cpu = () if self.cpu_seconds is None else (f"--cpu={self.cpu_seconds}:{self.cpu_seconds + 1}",)
        words = (f"--{name}={value}" for name, value in values.items() if value is not None)
        return (TOOL, *words, *cpu, "--core=0", "--")


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


def is_limit(error: BaseException) -> bool:
    """True for an error that says that memory, disk, processes or files are used up, whoever has used them."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SPENT)


def excess(first: int, *, processes: int, megabytes: int) -> str:
    """Names what is too much of the processes in the namespace of which `first` is the first one, memory that several
    have counted once, in words that follow their name; empty where nothing is, or none is left."""
    running = [*Path("/proc", str(first), "root", "proc").glob("[0-9]*")]
    if sum(map(_threads, running)) >= processes:
        return f"has as many processes and threads as it may ({processes})"
    if holds_more(running, megabytes):
        return f"holds more than {megabytes} MiB of memory (memoryMegabytes)"
    return ""


def holds_more(processes: Sequence[Path], megabytes: int) -> bool:
    """True if processes, by their folders in /proc, hold more together; memory that several have counts once."""
    return sum(map(_resident, processes)) > megabytes and sum(map(_share, processes)) > megabytes


def _threads(process: Path) -> int:
    with suppress(OSError):
        return int((process / "stat").read_text(errors="replace").rpartition(")")[2].split()[17])
    return 0


def _resident(process: Path) -> float:
    """MiB, all that it shares included."""
    return _megabytes(process / "status", "VmRSS:")


def _share(process: Path) -> float:
    """MiB, with its share of what others have too; all that one has which shows nobody."""
    try:
        return _megabytes(process / "smaps_rollup", "Pss:")
    except PermissionError:
        return _resident(process)


def _megabytes(file: Path, name: str) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in file.read_text(errors="replace").splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    return 0.0
