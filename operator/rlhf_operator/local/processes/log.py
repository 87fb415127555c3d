"""The log of a process on this machine, over all its starts, in a few files of bounded size."""

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

FULL = 8 << 20
"""Size of a log in bytes, above which its content moves to an older file, of at most twice that."""
OLDER = 3
"""Number of older files: `<log>.1` is the newest, and `<log>.3` the oldest."""
TAIL_BYTES = 65536


class ProcessLog:
    """A file to which a process appends its output itself. The process keeps its file while the content moves, and so
    does whoever follows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = 0
        """Offset at which the output of the newest start begins; below 0, in an older file."""

    def open(self, title: str) -> BinaryIO:
        """The file for the output of a new start, after a line that says so."""
        self.path.parent.mkdir(exist_ok=True)
        log = self.path.open("ab")
        log.write(f"=== {title}\n".encode())
        log.flush()
        self._begin = log.tell()
        return log

    def bound(self) -> None:
        """Moves the content to an older file if it is full; of a flood since the last look, the end. What the process
        writes between the copy and the truncation is lost. On a full disk the log stays as it is."""
        new = self.path.with_name(f"{self.path.name}.new")
        with suppress(OSError):
            if (size := self.path.stat().st_size) <= FULL:
                return
            try:
                with self.path.open("r+b") as log:
                    log.seek(max(0, size - 2 * FULL))
                    new.write_bytes(log.read(2 * FULL))
                    for number in range(OLDER, 1, -1):
                        with suppress(FileNotFoundError):
                            self._older(number - 1).replace(self._older(number))
                    new.replace(self._older(1))
                    self._begin -= log.tell()
                    log.truncate(0)
            finally:
                new.unlink(missing_ok=True)

    def tail(self) -> str:
        """The end of the output of the newest start; empty if somebody has deleted the file."""
        try:
            newest = _end(self.path, TAIL_BYTES, self._begin)
            missing = min(TAIL_BYTES - len(newest), -self._begin)
            before = _end(self._older(1), missing) if missing > 0 else b""
        except OSError:
            return ""
        return (before + newest).decode(errors="replace")

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _end(path: Path, most: int, begin: int = 0) -> bytes:
    """The last bytes of a file, at most `most`, from `begin` on."""
    with path.open("rb") as file:
        file.seek(max(begin, 0, file.seek(0, os.SEEK_END) - most))
        return file.read()
