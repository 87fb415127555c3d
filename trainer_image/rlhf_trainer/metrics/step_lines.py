"""Lines of JSON by step in a file with a size limit: `samples.jsonl`, `timeline.jsonl`. The whole run at even
distances."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel

from rlhf_api.host import strict_json

_STEP_SHARE = 4
"""A step gets at most this fraction, 1 / 4, of the limit."""


class StepLines:
    """Appends records. Once the file is above its limit, steps that are no multiples of 2, then of 4 and so on are
    dropped until it is at most half full."""

    def __init__(self, file: Path, most_bytes: int, step: int) -> None:
        """Drops lines of steps after `step`, left by a run that went beyond its last snapshot."""
        self._file, self._most, self._stride = file, most_bytes, 1
        if file.exists():
            self._rewrite(lambda number: number <= step)

    def add(self, step: int, records: Sequence[BaseModel]) -> None:
        """Appends the records of a step, each with that as `step`, the first ones if they are too long for the file."""
        if step % self._stride or not records:
            return
        left = self._most // _STEP_SHARE
        with self._file.open("a", encoding="utf-8") as out:
            for record in records:
                line = strict_json.dumps(record.model_dump(), ensure_ascii=False) + "\n"
                left -= len(line.encode())
                if left < 0:
                    break
                out.write(line)
        while self._file.stat().st_size > self._most:
            self._stride *= 2
            self._rewrite(lambda number: number % self._stride == 0)

    def _rewrite(self, keeps: Callable[[int], bool]) -> None:
        """Keeps the lines of these steps; a reader sees the old file or the new one."""
        new = self._file.with_name(f".{self._file.name}.new")
        with new.open("w", encoding="utf-8") as out:
            out.writelines(line for number, line in _numbered(self._file) if keeps(number))
        new.replace(self._file)


def _numbered(file: Path) -> Iterator[tuple[int, str]]:
    """Lines with their steps; one that a crash cut short is left out."""
    with file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                yield int(json.loads(line)["step"]), line
            except (ValueError, KeyError, TypeError):
                continue
