"""Reads files of a run's folder, which anything may have written: bounded, regular files only, and none outside it."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

LONGEST_LINE = 1 << 20
"""Bytes of a line of JSON; a longer one is left out."""
_TRACE = 64
"""Bytes before the offset by which a file is known to be the one that was read before."""
Fetch = Callable[[str], None]
"""Called with a file's name before the file is read, to bring it up to date."""


def leave(_name: str) -> None:
    """The Fetch of a folder that others write."""


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Opens a file of the folder. Raises OSError, also for what is no regular file, such as a pipe, which would block,
    and for a link that leads out of the folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise FileNotFoundError(f"{name} leads out of the run's folder")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(f"{name} is no regular file")
    return os.fdopen(descriptor, "rb")


def read_first(folder: Path, name: str, most: int) -> bytes | None:
    """The content of a small file; None if it is missing, unreadable or larger than `most` bytes."""
    try:
        with open_inside(folder, name) as file:
            content = file.read(most + 1)
    except OSError:
        return None
    return content if len(content) <= most else None


def read_last(folder: Path, name: str, most: int) -> bytes:
    """The end of a file, at most so many bytes, from the begin of a line on. Raises OSError."""
    with open_inside(folder, name) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - most))
        content = file.read(most)
    return content if size <= most else content.partition(b"\n")[2]


class GrowingFile:
    """A file of lines that another process appends to and may replace: each call reads what is new."""

    def __init__(self, folder: Path, name: str, fetch: Fetch = leave) -> None:
        self._folder, self._name, self._fetch = folder, name, fetch
        self._offset, self._trace = 0, b""

    def begin(self) -> tuple[bool, Iterator[bytes]]:
        """True if the file is another one than before, or was rewritten, and all of it is read again; and its new whole
        lines. A file that is missing has none."""
        self._fetch(self._name)
        try:
            file = open_inside(self._folder, self._name)
        except OSError:
            is_new = self._offset > 0
            self._offset, self._trace = 0, b""
            return is_new, iter(())
        is_new = not self._is_same(file)
        if is_new:
            self._offset, self._trace = 0, b""
        return is_new, self._new_lines(file)

    def _is_same(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._trace))
        return file.read(len(self._trace)) == self._trace

    def _new_lines(self, file: BinaryIO) -> Iterator[bytes]:
        with file:
            offset = file.seek(self._offset)
            is_too_long = False
            while line := file.readline(LONGEST_LINE):
                offset += len(line)
                is_whole = line.endswith(b"\n")
                if is_whole and not is_too_long:
                    yield line
                if not is_whole and len(line) < LONGEST_LINE:
                    break  # the writer has not ended it
                is_too_long = not is_whole
                if is_whole:
                    self._offset, self._trace = offset, line[-_TRACE:]
