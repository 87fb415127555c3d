"""Local copies of data that cannot be read by row in place: objects of a store, and Parquet files."""

import hashlib
import os
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import ArrowException
from pyarrow.parquet import ParquetFile

from rlhf_api.dataset.rows import RENDERED_FIELDS
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json
from rlhf_api.host.foreign_files import open_regular
from rlhf_store.errors import Missing, UnusableStore
from rlhf_store.locked import locked
from rlhf_store.store import Store

from ..process import progress

PARQUET = ".parquet"
DAY = 86_400.0
"""Deadline for another process's copy, seconds. A stalled download fails much earlier; this is only a bound."""
BATCH_ROWS = 1000


def local_file(path: str) -> Path:
    """The JSON or JSONL file of a path or a URL.

    A copy is made once, in `$XDG_CACHE_HOME/rlhf/data` (`~/.cache` unless given), for all processes of the machine.
    Raises InvalidJob where it cannot be had.
    """
    remote = "://" in path and not path.startswith("file://")
    file = _downloaded(path) if remote else Path(unquote(urlsplit(path).path) if "://" in path else path)
    if not path.endswith(PARQUET):
        return file
    try:
        with open_regular(file) as opened:  # a directory, as Spark writes one, is refused here
            status = os.fstat(opened.fileno())
    except OSError as error:
        raise InvalidJob([Problem(path, f"cannot be read: {error.strerror}")]) from None
    except ValueError:
        raise InvalidJob([Problem(path, "is not a regular file")]) from None
    version = f"{file.resolve()} {status.st_mtime_ns} {status.st_size}"
    return _copy(version, ".jsonl", lambda new: _write_lines(path, file, new))


def _downloaded(url: str) -> Path:
    folder, _, name = url.rpartition("/")
    try:
        store = Store(folder)
        attributes = store.attributes(name)
        version = f"{url} {attributes.tag} {attributes.size} {attributes.modified}"
        return _copy(version, Path(name).suffix, lambda new: store.download(attributes, new))
    except UnusableStore as error:
        raise InvalidJob([Problem(url, str(error))]) from None
    except Missing:
        raise InvalidJob([Problem(url, "cannot be read: there is no such object")]) from None


def _copy(version: str, suffix: str, make: Callable[[Path], None]) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rlhf", "data")
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{hashlib.sha256(version.encode()).hexdigest()[:32]}{suffix}"
    with locked(copy.with_suffix(".lock"), DAY):
        if not copy.exists():
            new = copy.with_suffix(".new")
            with progress.growing(folder):
                make(new)
            new.replace(copy)
    return copy


def _write_lines(path: str, file: Path, new: Path) -> None:
    """Converts Parquet to JSONL; null values are left out."""
    number = 0
    try:
        with new.open("w", encoding="utf-8") as lines:
            for batch in ParquetFile(file).iter_batches(BATCH_ROWS):
                for row in batch.to_pylist():
                    given = {key: value for key, value in without_nulls(row).items() if value is not None}
                    lines.write(strict_json.dumps(given, default=plain, ensure_ascii=False) + "\n")
                    number += 1
    except ArrowException as error:
        raise InvalidJob([Problem(path, f"is not a Parquet file: {str(error).splitlines()[0]}")]) from None
    except (TypeError, ValueError) as error:
        raise InvalidJob([Problem(f"{path}[{number}]", f"cannot be JSON: {error}")]) from None


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what is null at any depth of its conversations and tools: tables give each object the keys of all
    the others, so an argument that a tool call lacks is null there."""
    return {key: _filled(value) if key in RENDERED_FIELDS else value for key, value in row.items()}


def _filled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _filled(inner) for key, inner in value.items() if inner is not None}
    return [_filled(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has. Raises TypeError for any other."""
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not a JSON value; leave that column out")
