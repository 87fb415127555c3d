"""Rows of a sequence returned by a user's function, which the manifest names instead of a file."""

import json
from typing import Any

from rlhf_api.graph import RowKind
from rlhf_api.imports import described
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.row_files import Rows
from rlhf_api.rows import Row, checked_row

from ..imports import import_function
from .copies import plain


class ImportedRows(Rows):
    """Rows read and checked when they are needed; every rank calls the function once."""

    def __init__(self, name: str, kind: RowKind) -> None:
        """`name`: `package.module:name` of a function without arguments.

        Raises InvalidJob where it cannot be imported or called, or returns no sequence.
        """
        self.name, self._kind = name, kind
        function = import_function(name, name)
        try:
            self._rows: Any = function()
        except Exception as error:
            raise InvalidJob([Problem(name, f"has no rows: {described(error)}")]) from error
        if not (hasattr(self._rows, "__len__") and hasattr(self._rows, "__getitem__")):
            message = f"must return a sequence of rows, with len() and [i]; got {type(self._rows).__name__}"
            raise InvalidJob([Problem(name, message)])
        if not len(self):
            raise InvalidJob([Problem(name, "has no rows")])

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            found = self._rows[index]
        except Exception as error:
            raise InvalidJob([Problem(self.where(index), f"cannot be read: {described(error)}")]) from error
        if self._kind == "prompts":  # whole rows are sent to reward functions
            try:
                found = json.loads(json.dumps(found, default=plain))
            except (TypeError, ValueError) as error:
                raise InvalidJob([Problem(self.where(index), f"cannot be JSON: {error}")]) from None
        return checked_row(found, self._kind, lambda: self.where(index))

    def where(self, index: int) -> str:
        return f"{self.name}[{index}]"
