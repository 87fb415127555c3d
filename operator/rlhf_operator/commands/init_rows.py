"""The rows of a data file, by the fields of its first one: their kind, and the algorithms that train on it."""

import csv
from collections.abc import Mapping
from pathlib import Path

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.dataset.row_files import LARGEST_ROW, TABLES, RowFile
from rlhf_api.dataset.rows import ROW_TYPES, row_type
from rlhf_api.errors.problem import InvalidJob, Problem, first_line
from rlhf_api.field_types import RowKind, names_function
from rlhf_api.graph import Graph, Score
from rlhf_api.host.foreign_files import open_regular
from rlhf_api.spec import Spec

from ..archive.open_store import package


def graph_of(algorithm: str) -> Graph:
    """The graph of a built-in algorithm by its defaults."""
    return Spec.model_validate({"algorithm": algorithm, "steps": 1, "model": {}, "data": {}}).graph


def scores_responses(algorithm: str) -> bool:
    """True if the algorithm's jobs need a reward."""
    return any(isinstance(node, Score) for node in graph_of(algorithm).nodes)


def trained_on(kind: RowKind) -> list[str]:
    """The algorithms that train on rows of this kind."""
    return [name for name in ALGORITHMS if graph_of(name).rows == kind]


def first_fields(path: str, kind: RowKind, columns: Mapping[str, str]) -> list[str]:
    """The fields of a local file's first row; none for what is no local file: the URL of an object, or a function.
    `columns`: columns, by the fields that they are read as.

    Raises:
        InvalidJob: there is no such file, it has no rows, or they are of another kind, with the algorithms for it.
    """
    if "://" in path or names_function(path):
        return []
    try:
        return _fields(path, kind, columns)
    except InvalidJob as error:
        others = [name for each in ROW_TYPES if _fits(path, each, columns) for name in trained_on(each)]
        hint = f"; these rows are for {', '.join(others)}" if others else ""
        problems = [
            Problem(p.where, p.message.replace("spec.data.columns says", "--columns says"))
            for p in error.problems
        ]
        raise InvalidJob([Problem(p.where, f"{p.message}{hint}") for p in problems]) from None


def _fits(path: str, kind: RowKind, columns: Mapping[str, str]) -> bool:
    try:
        return bool(_fields(path, kind, columns))
    except InvalidJob:
        return False


def _fields(path: str, kind: RowKind, columns: Mapping[str, str]) -> list[str]:
    if not path.endswith(TABLES):
        row = RowFile(Path(path), kind, columns=columns)[0]
        return [
            *(name for name in type(row).model_fields if name in row.model_fields_set),
            *(row.model_extra or ()),
        ]
    named = _columns(path)
    fields = [*columns, *(name for name in named if name not in columns.values())]
    missing = [column for column in columns.values() if column not in named]
    needed = row_type(dict.fromkeys(fields), kind).model_fields.items()
    missing += [name for name, field in needed if field.is_required() and name not in fields]
    if missing:
        message = (
            f"has no column {', '.join(missing)}; it has {', '.join(named)}; --columns says which is meant"
        )
        raise InvalidJob([Problem(path, message)])
    return fields


def _columns(path: str) -> list[str]:
    """The columns of a table. Raises InvalidJob."""
    try:
        if path.endswith(".parquet"):
            return list(package("pyarrow.parquet").read_schema(path).names)
        with open_regular(Path(path)) as table:
            line = table.readline(LARGEST_ROW).decode("utf-8-sig")
        return next(csv.reader([line], delimiter="\t" if path.endswith(".tsv") else ","), [])
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's own errors are ValueErrors
        raise InvalidJob([Problem(path, f"cannot be read: {first_line(error)}")]) from None
