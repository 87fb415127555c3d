"""The rows of a data file, by the fields of its first one: their kind, and the algorithms that train on it."""

from pathlib import Path

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.dataset.row_files import RowFile
from rlhf_api.dataset.rows import ROW_TYPES, row_type
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.field_types import RowKind, names_function
from rlhf_api.graph import Graph, Score
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


def first_fields(path: str, kind: RowKind) -> list[str]:
    """The fields of a local file's first row; none for what is no local file: the URL of an object, or a function.

    Raises:
        InvalidJob: there is no such file, it has no rows, or they are of another kind, with the algorithms for it.
    """
    if "://" in path or names_function(path):
        return []
    try:
        return _fields(path, kind)
    except InvalidJob as error:
        others = [name for each in ROW_TYPES if _fits(path, each) for name in trained_on(each)]
        hint = f"; these rows are for {', '.join(others)}" if others else ""
        raise InvalidJob([Problem(p.where, f"{p.message}{hint}") for p in error.problems]) from None


def _fits(path: str, kind: RowKind) -> bool:
    try:
        return bool(_fields(path, kind))
    except InvalidJob:
        return False


def _fields(path: str, kind: RowKind) -> list[str]:
    if not path.endswith(".parquet"):
        row = RowFile(Path(path), kind)[0]
        return [*type(row).model_fields, *(row.model_extra or ())]
    try:
        columns: list[str] = package("pyarrow.parquet").read_schema(path).names
    except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors
        raise InvalidJob([Problem(path, f"cannot be read as Parquet: {error}")]) from None
    required = row_type(dict.fromkeys(columns), kind).model_fields
    if missing := [name for name in required if name not in columns]:
        message = f"has no column {', '.join(missing)}; it has {', '.join(columns)}; rename them"
        raise InvalidJob([Problem(path, message)])
    return columns
