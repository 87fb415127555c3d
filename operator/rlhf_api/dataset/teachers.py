"""The teacher of a row, in a job with several."""

from collections.abc import Sequence
from typing import Any

from ..errors.problem import show
from ..graph import TEACHER
from .rows import Row


def with_teacher(row: Row, name: str) -> Row:
    """The row with the teacher of its source, unless it names one."""
    return row if _teacher(row) is not None else row.model_copy(update={TEACHER: name})


def teacher_problem(row: Row, names: Sequence[str]) -> str:
    """The problem of a row that names none of the job's teachers; '' for any other."""
    name = _teacher(row)
    if name in names:
        return ""
    there = f"one of spec.distillation.teachers: {', '.join(names)}"
    if name is None:
        return f"is missing: it names {there}; add it to the row, or to its source in spec.data.sources"
    return f"must be {there}; got {show(name)}"


def _teacher(row: Row) -> Any:
    return (row.model_extra or {}).get(TEACHER)
