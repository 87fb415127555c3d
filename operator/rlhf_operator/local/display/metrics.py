"""Follows `metrics.jsonl` and `evaluation.jsonl` while the trainer writes them."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlhf_api.host import strict_json

from .figures import evaluation_change, evaluation_line


class Metrics:
    """Lines appended after construction, or with `whole` all; a partial line is read once it is complete."""

    def __init__(self, file: Path, *, whole: bool = False) -> None:
        self._file = file
        self._offset = 0 if whole else self._size()

    def new(self) -> list[Mapping[str, Any]]:
        """The lines since the last call."""
        if self._size() < self._offset:
            # A resumed trainer drops the steps after its snapshot and appends to the rest.
            self._offset = self._size()
        try:
            self._offset, whole = read_appended(self._file, self._offset)
        except OSError:
            return []
        return _figures(whole)

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0


class Evaluations:
    """New lines of `evaluation.jsonl` since construction, for people, with the first figure of each set."""

    def __init__(self, file: Path) -> None:
        self._figures = Metrics(file)
        self._first: dict[str, Mapping[str, Any]] = {}

    def new_lines(self) -> list[str]:
        """A line for each evaluation since the last call."""
        lines = []
        for figures in self._figures.new():
            name = str(figures.get("set"))
            lines.append(evaluation_line(figures, self._first.get(name)))
            self._first.setdefault(name, figures)
        return lines


def evaluation_changes(file: Path) -> list[str]:
    """First and last figures of each set that was evaluated at more than one step, as lines for people."""
    by_set = dict[str, list[Mapping[str, Any]]]()
    for figures in read_figures(file):
        by_set.setdefault(str(figures.get("set")), []).append(figures)
    several = (
        (lines[0], lines[-1]) for lines in by_set.values() if lines[0].get("step") != lines[-1].get("step")
    )
    return [line for first, last in several for line in evaluation_change(first, last)]


def read_appended(file: Path, offset: int) -> tuple[int, bytes]:
    """The end of the last whole line of a file that grows, and the lines from the offset to there. Raises OSError."""
    with file.open("rb") as lines:
        lines.seek(offset)
        whole, newline, _ = lines.read().rpartition(b"\n")
    return offset + len(whole) + len(newline), whole


def read_figures(file: Path) -> list[Mapping[str, Any]]:
    """All lines of such a file, without one that a crash cut short; none of a file that is not there."""
    return _figures(file.read_bytes()) if file.exists() else []


def _figures(content: bytes) -> list[Mapping[str, Any]]:
    lines = []
    for line in content.splitlines():
        with suppress(ValueError):
            lines.append(strict_json.figures(line))
    return [line for line in lines if line]
