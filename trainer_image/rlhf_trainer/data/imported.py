"""Rows of a sequence returned by a user's function, which the manifest names instead of a file."""

import json
from collections.abc import Mapping
from typing import Any
from zlib import crc32

from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.dataset.row_files import Rows
from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import RowKind
from rlhf_api.host.imports import described

from ..process.imports import import_function
from .tables import text_of

COMPARED = 64
"""Rows of each rank that are compared with rank 0's."""


class ImportedRows(Rows):
    """Rows read and checked when they are needed; every rank calls the function once."""

    def __init__(self, name: str, kind: RowKind, columns: Mapping[str, str] | None = None) -> None:
        """`name`: `package.module:name` of a function without arguments; `columns`: what its rows' fields are read as.

        Raises InvalidJob where it cannot be imported or called, or returns no sequence.
        """
        self.name, self._kind, self._columns = name, kind, columns or {}
        function = import_function(name, name)
        try:
            self._rows: Any = function()
            self._count = len(self._rows) if self._is_sequence() else None
        except Exception as error:
            raise InvalidJob([Problem(name, f"has no rows: {described(error)}")]) from error
        if self._count is None:
            named = (
                f" of {', '.join(map(repr, self._rows))}"
                if isinstance(self._rows, Mapping) and self._rows
                else ""
            )
            returned = f"{type(self._rows).__name__}{named}"
            message = f"must return a sequence of rows, with len() and [i]; got {returned}"
            raise InvalidJob([Problem(name, message)])
        if not self._count:
            raise InvalidJob([Problem(name, "has no rows")])

    def _is_sequence(self) -> bool:
        rows = self._rows
        return (
            hasattr(rows, "__len__") and hasattr(rows, "__getitem__") and not isinstance(rows, Mapping | str)
        )

    def __len__(self) -> int:
        return self._count or 0

    def checksum(self) -> int:
        """Checksum of the number of rows and of some rows, from first to last."""
        some = range(0, len(self), -(-len(self) // COMPARED))
        texts = (text for i in some for text in self.row(i).texts)
        return crc32("\0".join([str(len(self)), *texts]).encode(errors="replace"))

    def row(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            row = self._rows[index]
        except Exception as error:
            raise InvalidJob([Problem(self.where(index), f"cannot be read: {described(error)}")]) from error
        if self._kind == "prompts":  # whole rows are sent to reward functions
            try:
                row = json.loads(json.dumps(row, default=text_of))
            except (TypeError, ValueError) as error:
                raise InvalidJob([Problem(self.where(index), f"cannot be JSON: {error}")]) from None
        return checked_row(row, self._kind, lambda: self.where(index), self._columns, of_table=True)

    def where(self, index: int) -> str:
        return f"{self.name}[{index}]"
