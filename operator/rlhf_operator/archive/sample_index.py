"""A run's samples, wherever they are in their file: read backwards from its end, a part with each request, and then as
they are appended."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json

from rlhf_api.contract.samples import Sample
from rlhf_api.sections.samples import SAMPLES

from .run_files import LONGEST_LINE, Fetch, leave, open_inside
from .sample_columns import BYTES, Columns

MOST_SAMPLES = 2_000_000
"""In memory; beyond them the oldest are left out."""
PART = 4 << 20
"""Bytes that are read at once."""
MOST_NEW = 32 << 20
"""Bytes that may be appended from one request to the next; beyond them all is read anew."""
PATIENCE = 0.5
"""Seconds of a request after which it reads no further part."""
_TRACE = 64
"""Bytes before the end by which a file is known to be the one that was read before."""


class Placed(NamedTuple):
    """A sample, its place among those of its step, and the place of the first one of its group."""

    sample: Sample
    number: int
    group: int

    @property
    def id(self) -> str:
        return f"{self.sample.step}.{self.number}"

    @property
    def group_id(self) -> str:
        return f"{self.sample.step}.{self.group}"


class SampleIndex:
    """The samples of a run's folder, the oldest first. Not for several threads at once."""

    def __init__(self, folder: Path, fetch: Fetch = leave, name: str = SAMPLES) -> None:
        """`fetch`: see GrowingFile; `name`: of the file."""
        self._folder, self._fetch, self._name = folder, fetch, name
        self.recent = dict[Any, dict[str, Any]]()
        """Replies that are made of the columns as they are."""
        self._reset()

    def _reset(self) -> None:
        self.columns = Columns()
        self._first = Columns()
        """Samples before these, whose step may have others still before: without numbers until all of it is read."""
        self._begin = self._end = 0
        """Offsets between which the lines are read."""
        self._is_full = False
        """True once the oldest were left out."""
        self._trace = b""
        self.recent.clear()

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def memory_bytes(self) -> int:
        return BYTES * (len(self.columns) + len(self._first))

    @property
    def is_whole(self) -> bool:
        """False while older samples are still to be read, and if they are left out since there are too many."""
        return self._begin == 0 and not self._is_full

    @property
    def is_being_read(self) -> bool:
        """True while the next `refresh` reads older samples."""
        return self._begin > 0 and not self._is_full

    def refresh(self) -> "SampleIndex":
        """Reads what is new, and older samples for a while."""
        self._fetch(self._name)
        try:
            file = open_inside(self._folder, self._name)
        except OSError:
            if self._end:
                self._reset()
            return self
        with file:
            size = os.fstat(file.fileno()).st_size
            if self._is_same(file) and size - self._end <= MOST_NEW:
                self._read_new(file)
            else:
                self._begin_anew(file, size)
            deadline = time.monotonic() + PATIENCE
            while self.is_being_read:
                self._read_older(file)
                if time.monotonic() >= deadline:
                    break
        return self

    def read_all(self) -> "SampleIndex":
        """Reads all at once of a file that does not grow, whose last line may have no end."""
        while self.refresh().is_being_read:
            pass
        with suppress(OSError), open_inside(self._folder, self._name) as file:
            self.columns.add_lines(_read_part(file, self._end, self._end + LONGEST_LINE), self._end)
            self.columns.number()
        return self

    def read_lines(self, places: Iterable[int]) -> Iterator[tuple[int, bytes]]:
        """Samples' places with their lines."""
        try:
            file = open_inside(self._folder, self._name)
        except OSError:
            return
        with file:
            for place in places:
                file.seek(self.columns.offsets[place])
                yield place, file.readline(LONGEST_LINE)

    def read(self, places: Iterable[int]) -> list[Placed]:
        """The samples at these places, without those that cannot be read any more."""
        return [placed for place, line in self.read_lines(places) if (placed := self.parse(place, line))]

    def parse(self, place: int, line: bytes) -> Placed | None:
        """The sample of a line; None if the file has another line there by now, or one with keys of wrong types."""
        try:
            sample = Sample.model_validate(from_json(line))
        except (ValueError, ValidationError):
            return None
        columns = self.columns
        is_same = sample.step == columns.steps[place]
        return Placed(sample, columns.numbers[place], columns.groups[place]) if is_same else None

    def _is_same(self, file: BinaryIO) -> bool:
        if not self._end:
            return False
        file.seek(self._end - len(self._trace))
        return file.read(len(self._trace)) == self._trace

    def _begin_anew(self, file: BinaryIO, size: int) -> None:
        """Begins at the end of the last whole line. Of a file that ends in a line too long to be one, at its end."""
        self._reset()
        tail = _read_part(file, max(0, size - LONGEST_LINE), size)
        whole = tail[: tail.rfind(b"\n") + 1]
        is_line = bool(whole) or len(tail) == size
        self._begin = self._end = size - len(tail) + len(whole) if is_line else size
        self._trace = (whole or tail)[-_TRACE:]

    def _read_new(self, file: BinaryIO) -> None:
        data = _read_part(file, self._end, self._end + MOST_NEW)
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return
        if len(self) or self._begin == 0:
            self.columns.add_lines(whole, self._end)
            self.columns.number()
        else:
            self._first.add_lines(whole, self._end)
        self._end += len(whole)
        self._trace = (self._trace + whole)[-_TRACE:]
        self._make_room()
        self.recent.clear()

    def _read_older(self, file: BinaryIO) -> None:
        """Reads the part before those that were read, from the begin of a line on."""
        begin = max(0, self._begin - PART)
        data = _read_part(file, begin, self._begin)
        data = data[: data.rfind(b"\n") + 1]
        if begin > 0:
            cut = data.find(b"\n") + 1
            is_end = cut == len(data)  # of a line longer than the part
            begin, data = (begin, b"") if is_end else (begin + cut, data[cut:])
        older = Columns()
        older.add_lines(data, begin, self._first.steps[0] if len(self._first) else inf)
        older.extend(self._first)
        self._first, self._begin = Columns(), begin
        if begin > 0 and len(older):
            step = older.steps[0]
            count = next((place for place in range(len(older)) if older.steps[place] != step), len(older))
            self._first = older.take(count)
        older.number()
        older.extend(self.columns)
        self.columns = older
        self._make_room()
        self.recent.clear()

    def _make_room(self) -> None:
        """Leaves out the oldest steps, a tenth of what may be there with those that are too many."""
        count = len(self) - MOST_SAMPLES
        if count <= 0:
            return
        count = min(len(self), count + MOST_SAMPLES // 10)
        steps = self.columns.steps
        while count < len(self) and steps[count] == steps[count - 1]:
            count += 1
        self.columns.take(count)
        self._is_full = True


def _read_part(file: BinaryIO, begin: int, end: int) -> bytes:
    file.seek(begin)
    return file.read(end - begin)
