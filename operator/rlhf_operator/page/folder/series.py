"""Figures by step, in columns of floats: a file of them is parsed once, and then only what was appended."""

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from ...archive.run_files import Fetch, GrowingFile, leave

Line = Mapping[str, Any]
MOST_NAMES = 2000
MOST_VALUES = 4_000_000
"""Of one file, 8 bytes each; beyond it only every second step stays, and then every second of those."""
_LONGEST_NAME = 256
_AT_ONCE = 256
"""Lines that are added together."""
_NUMBERS = (int, float)
"""A truth value, which is an int too, is none."""
_LAST_STEP = 2**53


class Series:
    """The figures of `metrics.jsonl` or `evaluation.jsonl`."""

    def __init__(
        self,
        folder: Path,
        name: str,
        prefix: Callable[[Line], str] = lambda _line: "",
        fetch: Fetch = leave,
    ) -> None:
        """`prefix`: begin of the names of a line's figures; `fetch`: see GrowingFile."""
        self._file, self._prefix = GrowingFile(folder, name, fetch), prefix
        self.steps = array("q")
        self.generation = 0
        """How often all was read anew, since a resumed run had rewritten the file."""
        self._columns: dict[str, array[float]] = {}
        self._layout: tuple[str, ...] = ()
        self._waiting: list[tuple[int, Iterable[Any]]] = []
        """Steps and values of lines that have the names of the layout, behind their prefix."""

    def refresh(self) -> None:
        """Reads what was appended since the last call."""
        is_new, lines = self._file.begin()
        if is_new:
            self.generation += 1
            self.steps, self._columns = array("q"), {}
        for line in lines:
            try:
                figures = from_json(line)
            except ValueError:
                continue
            if isinstance(figures, dict):
                self._add(figures)
        self._take_waiting()

    @property
    def bytes(self) -> int:
        """Memory of the figures."""
        return 8 * len(self.steps) * (len(self._columns) + 1)

    @property
    def names(self) -> list[str]:
        return list(self._columns)

    def values(self, name: str) -> Sequence[float]:
        """A value for each of `steps`, NaN where a step has none."""
        column = self._columns.get(name, array("d"))
        column.extend([nan] * (len(self.steps) - len(column)))
        return column

    def last(self, name: str) -> float | None:
        """The newest finite value."""
        return next((value for value in reversed(self.values(name)) if isfinite(value)), None)

    def after(self, step: int) -> int:
        """Index of the first step after this one."""
        count = len(self.steps)
        while count and self.steps[count - 1] > step:
            count -= 1
        return count

    def _add(self, figures: Line) -> None:
        step = figures.get("step")
        if type(step) is not int or not 0 <= step <= _LAST_STEP:
            return
        newest = self._waiting[-1][0] if self._waiting else self.steps[-1] if self.steps else -1
        if step < newest:
            return  # of a hand's edit; a run writes steps in order
        layout = self._prefix(figures), *figures
        if self._waiting and (layout != self._layout or step == newest or len(self._waiting) == _AT_ONCE):
            self._take_waiting()
        self._layout = layout
        self._waiting.append((step, figures.values()))

    def _take_waiting(self) -> None:
        """Adds lines that have the same names, name by name: one by one, a long run would take twice as long."""
        if not self._waiting:
            return
        steps, rows = zip(*self._waiting, strict=True)
        self._waiting = []
        is_again = bool(self.steps) and self.steps[-1] == steps[0]
        row = len(self.steps) - is_again
        self.steps.extend(steps[is_again:])
        prefix, *names = self._layout
        for name, values in zip(names, zip(*rows, strict=True), strict=True):
            column = self._find_column(name, prefix, values)
            if column is not None:
                column.extend([nan] * (row - len(column)))
                column[row : row + len(steps)] = _read_numbers(values)
        while len(self.steps) * len(self._columns) > MOST_VALUES:
            self._thin()

    def _find_column(self, name: str, prefix: str, values: Sequence[Any]) -> "array[float] | None":
        """The column of a name, a new one if need be; None for what are no figures."""
        column = self._columns.get(prefix + name)
        is_full = len(self._columns) >= MOST_NAMES
        if column is not None or name == "step" or is_full or len(name) > _LONGEST_NAME:
            return column
        if not any(type(value) in _NUMBERS for value in values):
            return None
        return self._columns.setdefault(prefix + name, array("d"))

    def _thin(self) -> None:
        for name in self._columns:
            self._columns[name] = array("d", self.values(name)[::2])
        self.steps = self.steps[::2]


def _read_numbers(values: Sequence[Any]) -> "array[float]":
    """NaN for what is no number, or a whole one beyond floats."""
    try:
        return array("d", values)
    except (TypeError, OverflowError):
        return array("d", map(_read_number, values))


def _read_number(value: Any) -> float:
    try:
        return float(value) if type(value) in _NUMBERS else nan
    except OverflowError:
        return nan
