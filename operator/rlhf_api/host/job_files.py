"""Folder of the files that a job carries (`spec.workspace.files`), in which names of its manifest are looked up before
the current directory. The host of a process makes it and names it in a variable."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FOLDER = "RLHF_FILES"
"""The variable with the folder's path; unset for a job that carries nothing."""


def located(path: str) -> Path:
    """The file that the job carries under this name, or else the path itself."""
    carried = Path(os.environ.get(FOLDER, ""), path)
    inside = FOLDER in os.environ and ".." not in carried.parts
    return carried if inside and carried.is_file() else Path(path)


def as_named(file: Path) -> str:
    """The path of a file for messages; of one that the job carries, its name in the manifest."""
    folder = os.environ.get(FOLDER)
    if folder and file.is_relative_to(folder):
        return f"{file.relative_to(folder)} of spec.workspace.files"
    return str(file)


def module_places() -> list[str]:
    """`sys.path` with the current directory as its last place, and the job's folder directly before that. They are last
    since a file there with a library's name would run in its place, whoever imports it."""
    here, folder = str(Path.cwd()), os.environ.get(FOLDER)
    places = [*sys.path] if here in sys.path else [*sys.path, here]
    if folder and folder not in places:
        places.insert(places.index(here), folder)
    return places


@contextmanager
def provided(files: Mapping[str, str]) -> Iterator[None]:
    """Writes the files into a temporary folder, for this process and those that it starts meanwhile."""
    before = os.environ.pop(FOLDER, None)
    try:
        if not files:
            yield
            return
        with tempfile.TemporaryDirectory(prefix="rlhf-files-", ignore_cleanup_errors=True) as folder:
            _write(Path(folder), files)
            os.environ[FOLDER] = folder
            yield
    finally:
        os.environ.pop(FOLDER, None)
        if before is not None:
            os.environ[FOLDER] = before


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="")
    if os.geteuid() == 0:  # another user runs the programs of a sandbox, and has to read them
        folder.chmod(0o755)
