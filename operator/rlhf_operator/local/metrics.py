"""Follows `metrics.jsonl` while the trainer writes it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_api.host import strict_json


class Metrics:
    """Lines appended after construction; a partial line is read once it is complete."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = self._size()

    def new(self) -> list[Mapping[str, Any]]:
        """The steps since the last call."""
        if self._size() < self._offset:
            # A resumed trainer drops the steps after its snapshot and appends to the rest.
            self._offset = self._size()
        try:
            with self._file.open("rb") as lines:
                lines.seek(self._offset)
                whole, newline, _ = lines.read().rpartition(b"\n")
        except OSError:
            return []
        self._offset += len(whole) + len(newline)
        return [step for line in whole.splitlines() if (step := _parse(line))]

    def _size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0


def _parse(line: bytes) -> Mapping[str, Any] | None:
    try:
        return strict_json.figures(line)
    except (ValueError, AttributeError):  # no JSON, or no object
        return None
