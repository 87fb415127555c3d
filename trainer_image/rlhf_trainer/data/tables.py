"""Rows of tables, Parquet and CSV, as JSONL."""

import csv
from collections.abc import Iterable, Iterator
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyarrow import ArrowException
from pyarrow.parquet import ParquetFile

from rlhf_api.dataset.checked_row import without_nulls
from rlhf_api.dataset.images import image_bytes
from rlhf_api.dataset.row_files import LARGEST_ROW
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json

BATCH_ROWS = 1000
SEPARATORS = {".csv": ",", ".tsv": "\t"}


def write_lines(path: str, files: Iterable[Path], new: Path) -> None:
    """Writes the rows of all files as lines of JSON; null values are left out. `path`: their name in messages.

    Raises InvalidJob where they are no tables, or a value is none of JSON."""
    number = 0
    try:
        with new.open("w", encoding="utf-8") as lines:
            for file in files:
                for row in _rows(file):
                    lines.write(strict_json.dumps(row, default=text_of, ensure_ascii=False) + "\n")
                    number += 1
    except ArrowException as error:
        raise InvalidJob([Problem(path, f"is not a Parquet file: {str(error).splitlines()[0]}")]) from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidJob([Problem(f"{path}[{number}]", f"is not CSV: {error}")]) from None
    except (TypeError, ValueError) as error:
        raise InvalidJob([Problem(f"{path}[{number}]", f"cannot be JSON: {error}")]) from None


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    if separator := SEPARATORS.get(file.suffix):
        yield from _rows_of_text(file, separator)
        return
    for batch in ParquetFile(file).iter_batches(BATCH_ROWS):
        for row in batch.to_pylist():
            yield {key: value for key, value in without_nulls(row).items() if value is not None}


def _rows_of_text(file: Path, separator: str) -> Iterator[dict[str, str]]:
    """Rows by the names in the first line; every value is text. Raises csv.Error where a row has not as many."""
    csv.field_size_limit(LARGEST_ROW)
    with file.open(encoding="utf-8-sig", newline="") as text:
        rows = csv.reader(text, delimiter=separator, strict=True)
        names = next(rows, [])
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise csv.Error(f"the first line names the column {twice!r} twice")
        for row in rows:
            if len(row) not in (0, len(names)):
                counts = f"{len(row)} values, and the first line {len(names)} names"
                raise csv.Error(
                    f"the row that ends in line {rows.line_num} has {counts}; quote what has a {separator!r}"
                )
            if row:
                yield dict(zip(names, row, strict=True))


def text_of(value: Any) -> Any:
    """As `plain`; bytes as those of an image."""
    return image_bytes(value) if isinstance(value, bytes) else plain(value)


def plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has. Raises TypeError for any other."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value; leave that column out")
