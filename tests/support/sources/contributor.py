"""A copy of the sources, to which a test applies what a contributor would write."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
Edits = Mapping[str, Iterable[tuple[str, str]]]
"""File -> (text that stands there once, text in its place)."""


def copied(folder: Path, *roots: str, edits: Edits) -> Path:
    """The folders `roots` of this repository below `folder`, edited; files of `edits` are named from any of them."""
    for root in roots:
        shutil.copytree(ROOT / root, folder / root, ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in edits.items():
        (file,) = (folder / root / name for root in roots if (folder / root / name).exists())
        edit(file, *changes)
    return folder


def edit(file: Path, *edits: tuple[str, str]) -> None:
    text = file.read_text()
    for before, after in edits:
        assert text.count(before) == 1, f"{file.name} has changed: {before!r}"
        text = text.replace(before, after)
    file.write_text(text)


def importing(*roots: Path) -> dict[str, str]:
    """The environment of a process that imports these sources."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, roots))}
