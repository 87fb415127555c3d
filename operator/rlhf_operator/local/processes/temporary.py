"""Temporary files of a run's processes: vLLM and torchrun leave sockets and small files where they are killed."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .caches import private_caches

NOTE = ".tmp"
"""File of the work directory with the path of the folder for temporary files, while a run is under way."""
_PREFIX = "rlhf-run-"
_LONGEST = 107 - len("/rlhf-run-12345678/12345678-1234-1234-1234-123456789abc")
"""Longest path for the folder's parent: a socket's address has 107 bytes at most, and vLLM's are named by a UUID."""


@contextmanager
def temporary(workdir: Path, job: Mapping[str, str], tell: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """A folder for temporary files, removed at the end, or else at the next start in this work directory. Yields the
    variables with which processes use it, without TMPDIR where the path would be too long for sockets or the `job`'s
    variables have one; and those of caches, which override the job's. `tell` gets lines for the user.

    It is where temporary files usually are, since paths of sockets must be short. Others may look up what they know the
    name of, as a sandbox's user does.
    """
    note = workdir / NOTE
    _remove(note)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    made.chmod(0o711)
    note.write_text(str(made), encoding="utf-8")
    used = "TMPDIR" not in job and len(os.fsencode(made.parent)) <= _LONGEST
    try:
        caches, warnings = private_caches({**os.environ, **job}, made)
        for line in warnings:
            tell(line)
        yield ({"TMPDIR": str(made)} if used else {}) | caches
    finally:
        shutil.rmtree(made, ignore_errors=True)
        note.unlink(missing_ok=True)


def _remove(note: Path) -> None:
    """Removes the folder that the note names, if `temporary` has made it, and the note."""
    with suppress(OSError, ValueError):
        made = Path(note.read_text(encoding="utf-8"))
        if made.parent == Path(tempfile.gettempdir()) and made.name.startswith(_PREFIX):
            shutil.rmtree(made, ignore_errors=True)
        note.unlink()
