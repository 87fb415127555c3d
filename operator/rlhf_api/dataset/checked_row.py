"""A row of a user's file as one of the row types: its columns by their fields, and its first mistake in words."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from ..errors.messages import in_our_words
from ..errors.problem import InvalidJob, Problem, kind_of, show
from ..errors.similar import closest
from ..field_types import RowKind
from .messages import Message
from .rows import RENDERED_FIELDS, Row, row_type


def _row_problem(error: ValidationError, where: str, row: Any, model: type[Row]) -> Problem:
    details = error.errors()[0]
    first, *inner = details["loc"] or ("",)
    # The tag of the union's branch is part of the location, but not a key.
    field = ".".join(
        str(part) for part in (first, *inner) if part is first or part not in ("text", "messages")
    )
    if details["type"] == "missing":
        given, name = details["input"], str(details["loc"][-1])
        known = (model if given is row else Message).model_fields
        others = [key for key in given if isinstance(key, str) and key not in known]
        present = (
            f"; the {'row' if given is row else 'message'} has {', '.join(map(repr, given)) or 'no fields'}"
        )
        meant = "messages" if name == "prompt" and "messages" in others else closest(name, others)
        if meant:
            present += f"; rename {meant!r}"
        elif given is row and given:
            present += f"; spec.data.columns says which of them is the {name}"
        return Problem(f"{where}: {field}", f"is missing{present}")
    got = f"; got {show(details['input'])}" if field else ""
    return Problem(f"{where}: {field}" if field else where, in_our_words(details) + got)


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what is null at any depth of its conversations and tools: tables give each object the keys of all
    the others, so an argument that a tool call lacks is null there."""
    return {key: _filled(value) if key in RENDERED_FIELDS else value for key, value in row.items()}


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner) for key, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list | tuple) else value


def _renamed(row: dict[str, Any], columns: Mapping[str, str], where: Callable[[], str]) -> dict[str, Any]:
    if (missing := next((column for column in columns.values() if column not in row), None)) is not None:
        has = f"has {', '.join(map(repr, row)) or 'no fields'}"
        raise InvalidJob(
            [Problem(where(), f"there is no {missing!r}, which data.columns names; the row {has}")]
        )
    others = {key: value for key, value in row.items() if key not in columns.values()}
    return others | {field: row[column] for field, column in columns.items()}


def checked_row(
    row: Any,
    kind: RowKind,
    where: Callable[[], str],
    columns: Mapping[str, str] | None = None,
    *,
    of_table: bool = False,
) -> Row:
    """Validates a row, with `columns` read as the fields that they are the values of. `of_table`: what is null in it is
    not there.

    Raises InvalidJob with the field, and with its place, for which `where` is called only then.
    """
    if not isinstance(row, dict):
        raise InvalidJob([Problem(where(), f"a row must be an object; it is {kind_of(row)}")])
    row = _renamed(row, columns, where) if columns else row
    row = without_nulls(row) if of_table else row
    model = row_type(row, kind)
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise InvalidJob([_row_problem(error, where(), row, model)]) from None
