"""Cells of a notebook, executed in order as IPython does: in one `__main__`, with sources that `inspect` finds."""

import linecache
from collections.abc import Iterable
from typing import Any


def run_cells(cells: Iterable[str]) -> dict[str, Any]:
    """Returns the names that the cells have defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(cells, 1):
        file = f"<cell {number}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        exec(compile(source, file, "exec"), names)
    return names
