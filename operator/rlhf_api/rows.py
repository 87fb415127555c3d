"""The rows of a dataset: their three shapes, and a reader that says which row is wrong and why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .graph import RowKind
from .problems import InvalidJob, Problem, show, suggestion

NonEmpty = Annotated[str, Field(min_length=1)]


class Row(BaseModel):
    """Further fields are kept: reward functions receive the whole row."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


class PromptRow(Row):
    """A prompt to answer."""

    prompt: NonEmpty


class AnswerRow(Row):
    """A prompt with its answer, for supervised fine-tuning."""

    prompt: NonEmpty
    answer: NonEmpty


class PairRow(Row):
    """A prompt with answers of which `pos_answers[i]` is better than `neg_answers[i]`."""

    prompt: NonEmpty
    pos_answers: Annotated[list[NonEmpty], Field(min_length=1)]
    neg_answers: Annotated[list[NonEmpty], Field(min_length=1)]

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        if len(self.pos_answers) != len(self.neg_answers):
            raise ValueError(
                f"pos_answers and neg_answers must be equally long; got {len(self.pos_answers)} "
                f"and {len(self.neg_answers)}"
            )
        return self


ROW_TYPES: dict[RowKind, type[Row]] = {"prompts": PromptRow, "responses": AnswerRow, "pairs": PairRow}


def _objects(file: Path) -> Iterator[tuple[str, Any]]:
    """Each row of a JSONL file, or of a JSON file that holds one list, with where it stands."""
    text = file.read_text(encoding="utf-8-sig")  # with or without a byte order mark
    if text.lstrip()[:1] == "[":
        yield from ((f"{file}[{i}]", row) for i, row in enumerate(_parse(text, str(file))))
        return
    # Not splitlines: that also splits at characters which JSON allows inside a string, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{file}:{number}", _parse(line, f"{file}:{number}")


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if "\n" in text.strip():
            raise InvalidJob([Problem(f"{where}:{error.lineno}", f"is no JSON: {error.msg}")]) from None
        raise InvalidJob([Problem(where, f"is no JSON: {error.msg}; got {show(text.strip())}")]) from None
    except (ValueError, RecursionError) as error:
        raise InvalidJob([Problem(where, f"cannot be read: {error}")]) from None


def _row_problem(error: ValidationError, where: str, row: Any, model: type[Row]) -> Problem:
    details = error.errors()[0]
    field = ".".join(map(str, details["loc"]))
    if details["type"] == "missing":
        others = [key for key in row if key not in model.model_fields]
        found = f"; the row has {', '.join(map(repr, row)) or 'no fields'}"
        hint = suggestion(field, others) if others else ""
        return Problem(f"{where}: {field}", f"is missing{found}" + (f"; {hint}" if "did you" in hint else ""))
    message = details["msg"].removeprefix("Value error, ")
    return Problem(
        f"{where}: {field}" if field else where,
        f"{message}" + (f"; got {show(details['input'])}" if field else ""),
    )


def read_rows(path: str, kind: RowKind) -> list[Row]:
    """The checked rows of a JSON or JSONL file.

    Raises:
        InvalidJob: the file is missing, empty or unreadable, or its first bad row: file, line and field.
    """
    file, model = Path(path), ROW_TYPES[kind]
    rows: list[Row] = []
    try:
        for where, row in _objects(file):
            if not isinstance(row, dict):
                raise InvalidJob([Problem(where, f"a row must be an object; got {show(row)}")])
            try:
                rows.append(model.model_validate(row))
            except ValidationError as error:
                raise InvalidJob([_row_problem(error, where, row, model)]) from None
    except OSError as error:
        raise InvalidJob([Problem(path, f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise InvalidJob([Problem(path, "is not UTF-8 text")]) from None
    if not rows:
        raise InvalidJob([Problem(path, "has no rows")])
    return rows
