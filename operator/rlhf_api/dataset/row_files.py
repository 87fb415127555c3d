"""Reads rows of files, JSONL or a JSON list, by offset. A row takes twelve bytes of memory, whatever its length: its
offset, and a checksum that detects a row that was changed meanwhile."""

import json
import mmap
import os
import re
import sys
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isinf
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload
from zlib import crc32

from ..errors.problem import InvalidJob, Problem, show
from ..field_types import RowKind
from ..host.foreign_files import open_regular
from .checked_row import checked_row
from .rows import Row

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', flags=re.DOTALL)
"""A JSON string, or a structural character of lists and objects."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2"}
"""First bytes of compressed files."""
TABLES = (".parquet", ".csv", ".tsv")
"""Endings of the names of tables, whose rows are copied as JSONL before they are read."""
_OTHER_TABLES = {".arrow": "Arrow", ".xlsx": "Excel"}
_HUB_NAME = re.compile(r"[\w-]+/[\w.-]+")
_PARQUET = b"PAR1"
"""First and last bytes of a Parquet file."""


class Rows(Sequence[Row]):
    """Rows read one by one, also in slices."""

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        """Raises InvalidJob for a bad row, with its place, field and value."""
        return (
            [self[i] for i in range(*index.indices(len(self)))]
            if isinstance(index, slice)
            else self.row(index)
        )

    @abstractmethod
    def row(self, index: int) -> Row:
        """Raises IndexError beyond the last row, InvalidJob as `[]` does."""


LARGEST_ROW = 64 << 20
"""Maximum size of a row, bytes."""


class RowFile(Rows):
    """The rows of a file, read and checked on access."""

    def __init__(
        self,
        file: Path,
        kind: RowKind,
        name: str | None = None,
        columns: Mapping[str, str] | None = None,
        *,
        of_table: bool = False,
    ) -> None:
        """`name`: the original's name in messages, if the file is a copy; `columns`: columns, by the fields that
        they are read as; `of_table`: the copy of a table, whose rows are reported by number, from 0.

        Raises InvalidJob if the file cannot be read, is a truncated list, or has no rows.
        """
        self._file, self._kind, self.name = file, kind, name or str(file)
        self._columns, self._of_table = columns or {}, of_table
        try:
            open_regular(file).close()  # a pipe or a device may have no end
            if other := _other_form(file):
                raise InvalidJob([Problem(self.name, other)])
            self._starts, self._sums, self._is_list = _index(file)
        except InvalidJob:
            raise
        except ValueError:
            raise InvalidJob([Problem(self.name, "is not a regular file")]) from None
        except OSError as error:
            raise InvalidJob(
                [Problem(self.name, f"cannot be read: {error.strerror}{_hint(self.name)}")]
            ) from None
        self._by_number = of_table or self._is_list
        if not len(self):
            raise InvalidJob([Problem(self.name, "has no rows")])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def checksum(self) -> int:
        """Checksum of all rows, in their order, as they were when the file was opened."""
        return crc32(self._sums)

    def row(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(index)
        try:
            with self._file.open("rb") as file:
                return self._read(file, index)
        except OSError as error:
            raise InvalidJob([Problem(self.name, f"cannot be read: {error.strerror}")]) from None

    def __iter__(self) -> Iterator[Row]:
        """Yields all rows, with the file opened once. Raises InvalidJob at the first bad one."""
        for row in self.each():
            if isinstance(row, InvalidJob):
                raise row
            yield row

    def each(self) -> Iterator[Row | InvalidJob]:
        """Yields all rows, with the file opened once; for a bad row, the InvalidJob that it raises."""
        with self._file.open("rb") as file:
            for i in range(len(self)):
                try:
                    yield self._read(file, i)
                except InvalidJob as error:
                    yield error

    def _read(self, file: BinaryIO, index: int) -> Row:
        _check_size(self._starts[index + 1] - self._starts[index], f"{self.name}, row {index}")
        file.seek(self._starts[index])
        data = _content(file.read(self._starts[index + 1] - self._starts[index]), is_list=self._is_list)
        if crc32(data) != self._sums[index]:
            message = (
                "changed after the file was opened; start again, and leave the file alone while it is read"
            )
            raise InvalidJob([Problem(f"{self.name}, row {index}", message)])
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise InvalidJob([Problem(self.where(index), "is not UTF-8 text")]) from None
        row = _parse(text, lambda: self.where(index))
        return checked_row(row, self._kind, lambda: self.where(index), self._columns, of_table=self._of_table)

    def where(self, index: int) -> str:
        """`file:line`, counted by reading the rows before; `file[index]` for a list, whose rows may share a line."""
        if self._by_number:
            return f"{self.name}[{index}]"
        with self._file.open("rb") as file:
            lines, left = 1, self._starts[index]
            while left > 0 and (data := file.read(min(left, 1 << 20))):
                lines, left = lines + data.count(b"\n"), left - len(data)
        return f"{self.name}:{lines}"


def is_parquet(file: Path) -> bool:
    """True if a local file begins and ends as Parquet does; one that cannot be read counts, as its reader says why."""
    try:
        with file.open("rb") as opened:
            begin, length = opened.read(4), opened.seek(0, os.SEEK_END)
            opened.seek(max(0, length - 4))
            return begin == opened.read(4) == _PARQUET
    except OSError:
        return True


def _other_form(file: Path) -> str:
    """Advice for a file of rows in a format that is not read, by its name and first bytes; '' for any other."""
    if kind := _OTHER_TABLES.get(file.suffix.lower()):
        return f"is {kind}, which is not read; write its rows as JSONL, CSV or Parquet"
    if (ending := file.suffix.lower()) in TABLES and ending != file.suffix:
        return f"is no table by its name; let it end with {ending}"
    with file.open("rb") as opened:
        begin = opened.read(4)
    if begin == _PARQUET:
        return "is Parquet; let its name end with .parquet"
    packed = next((kind for mark, kind in _COMPRESSED.items() if begin.startswith(mark)), "")
    return f"is compressed ({packed}), which is not read; decompress it first" if packed else ""


def _hint(name: str) -> str:
    """Advice for a file's name that reads as a dataset's name on the hub; '' for any other."""
    if not _HUB_NAME.fullmatch(name) or Path(name).suffix or Path(name).parent.exists():
        return ""
    return f"; if it is a dataset of the hub, name a split of it, such as hf://{name}:train"


class _Index(NamedTuple):
    """Offsets of the rows and the end of the last one; checksums of the rows; and True for a file that is a list."""

    starts: "array[int]"
    sums: "array[int]"
    is_list: bool


def _index(file: Path) -> _Index:
    starts, sums = array("Q"), array("I")
    with file.open("rb") as lines:
        at = len(_BYTE_ORDER_MARK) if lines.read(3) == _BYTE_ORDER_MARK else 0
        lines.seek(at)
        while line := lines.readline(LARGEST_ROW + 1):
            if text := _content(line, is_list=False):
                if not starts and text[:1] == b"[":
                    return _index_list(file, at)
                _check_size(len(line), f"{file}, row {len(starts)}")
                starts.append(at)
                sums.append(crc32(text))
            at += len(line)
    starts.append(at)
    return _Index(starts, sums, is_list=False)


def _check_size(size: int, where: str) -> None:
    """Raises InvalidJob for more bytes than a row may have."""
    if size > LARGEST_ROW:
        raise InvalidJob([Problem(where, f"is larger than {LARGEST_ROW >> 20} MiB, as no row is")])


def _content(data: bytes, *, is_list: bool) -> bytes:
    """A row without the white space, and the comma in a list, that follow it."""
    return data.strip().removesuffix(b",") if is_list else data.strip()


def _index_list(file: Path, begin: int) -> _Index:
    starts, depth = array("Q"), 0
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for match in _TOKEN.finditer(data, begin):
            token = match[0]
            depth += (token in (b"[", b"{")) - (token in (b"]", b"}"))
            if depth == 1 and (token == b"," or not starts):
                starts.append(match.end())
            elif depth == 0:
                empty = len(starts) == 1 and not data[starts[0] : match.start()].strip()
                if not data[match.end() :].strip():
                    ends = array("Q", starts[1:] if empty else [*starts[1:], match.start()])
                    for i, (start, end) in enumerate(zip(starts, ends, strict=False)):
                        _check_size(end - start, f"{file}[{i}]")
                    rows = (data[start:end] for start, end in zip(starts, ends, strict=False))
                    sums = array("I", (crc32(_content(row, is_list=True)) for row in rows))
                    return _Index(starts[:1] + ends, sums, is_list=True)
                break
    _check_size(file.stat().st_size, f"{file}, a list without an end")
    _parse(file.read_text(encoding="utf-8-sig", errors="replace"), lambda: str(file))
    raise AssertionError("what is no list to its end is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        values = " and ".join(show(value) for key, value in pairs if key == twice)
        raise ValueError(f"an object has the key {twice!r} twice, and only one can be meant; got {values}")
    return made


def _number(text: str) -> float:
    if isinf(number := float(text)):
        raise ValueError(f"a number is beyond the largest one, {sys.float_info.max:.3g}; got {text}")
    return number


def _refused_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON; write null")


def _parse(text: str, where: Callable[[], str]) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_float=_number, parse_constant=_refused_constant
        )
    except json.JSONDecodeError as error:
        # Not quoted: it may be of a file that is none of rows, but of secrets.
        line = f":{error.lineno}" if "\n" in text.strip() else ""
        message = f"is not valid JSON: {error.msg} at character {error.colno}"
        raise InvalidJob([Problem(f"{where()}{line}", message)]) from None
    except (ValueError, RecursionError) as error:
        raise InvalidJob([Problem(where(), f"cannot be read: {error}")]) from None
