"""Figures by step, in columns of floats: a file of them is parsed once, and then only what was appended."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from .files import Fetch, GrowingFile, leave

Line = Mapping[str, Any]
MOST_NAMES = 2000
MOST_VALUES = 4_000_000
"""Of one file, 8 bytes each; beyond it only every second step stays, and then every second of those."""
_LONGEST_NAME = 256
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
        if self.steps and step < self.steps[-1]:
            return  # of a hand's edit; a run writes steps in order
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
        before, row = self._prefix(figures), len(self.steps) - 1
        columns = self._columns
        for name, value in figures.items():
            if type(value) is not float and type(value) is not int and value is not None:
                continue
            column = columns.get(before + name)
            if column is None:
                if name == "step" or len(columns) >= MOST_NAMES or len(name) > _LONGEST_NAME:
                    continue
                column = columns[before + name] = array("d")
            try:
                figure = nan if value is None else float(value)
            except OverflowError:  # a whole number beyond floats
                figure = nan
            if len(column) == row:
                column.append(figure)
            elif len(column) > row:
                column[row] = figure
            else:
                column.extend([nan] * (row - len(column)))
                column.append(figure)
        if len(self.steps) * len(columns) > MOST_VALUES:
            self._thin()

    def _thin(self) -> None:
        for name in self._columns:
            self._columns[name] = array("d", self.values(name)[::2])
        self.steps = self.steps[::2]
