"""Temporary files of a run's processes: vLLM and torchrun leave sockets and small files where they are killed."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NOTE = ".tmp"
"""File of the work directory with the path of the folder for temporary files, while a run is under way."""
_PREFIX = "rlhf-run-"
_LONGEST = 107 - len("/rlhf-run-12345678/12345678-1234-1234-1234-123456789abc")
"""Longest path for the folder's parent: a socket's address has 107 bytes at most, and vLLM's are named by a UUID."""
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"


@contextmanager
def temporary(workdir: Path) -> Iterator[dict[str, str]]:
    """A folder for temporary files, removed at the end, or else at the next start in this work directory. Yields the
    variables with which processes use it: none where the path would be too long for sockets.

    It is where temporary files usually are, since paths of sockets must be short. Others may look up what they know the
    name of, as a sandbox's user does. What torch has compiled stays beside it, for the next run.
    """
    note = workdir / NOTE
    _remove(note)
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST:
        yield {}
        return
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))
    made.chmod(0o711)
    note.write_text(str(made), encoding="utf-8")
    compiled = made.with_name(f"torchinductor_{os.getuid()}")
    try:
        yield {"TMPDIR": str(made), _COMPILED: os.environ.get(_COMPILED, str(compiled))}
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
