"""An episode of a checkpoint as a file on this machine's disk, of which no more is in memory than is read at once."""

import tempfile
from collections import OrderedDict
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.parquet_pages import check_inflation

from .open_store import package

if TYPE_CHECKING:
    from rlhf_store.archive import Snapshot

MOST_BYTES = 256 << 20
"""Of an episode that is copied: others wait meanwhile."""
_GROUPS = 4
"""Row groups in memory, of half a million tokens each as the trainer writes them."""

Table = Any
"""A pyarrow.Table, which has no type stubs."""


class EpisodeFile:
    """A copy of an episode, deleted with this object. Not for several threads at once."""

    def __init__(self, snapshot: "Snapshot", name: str) -> None:
        """Raises DamagedSnapshot, and InvalidJob without pyarrow, and if the episode is too large, of another format,
        or would decode to far more than its file."""
        self._name = name
        size = sum(part.size for part in snapshot.parts(name))
        if size > MOST_BYTES:
            message = (
                f"has {size >> 20} MiB, and {MOST_BYTES >> 20} are read here; `rlhf replay show` reads it"
            )
            raise InvalidJob([Problem(name, message)])
        self._arrow, self._parquet = package("pyarrow"), package("pyarrow.parquet")
        self._folder = tempfile.TemporaryDirectory(prefix="rlhf-episode-")
        path = Path(self._folder.name) / "episode.parquet"
        snapshot.download(name, path)
        try:
            # On this thread: an Arrow thread that still runs when Python exits aborts the process.
            self._file = self._parquet.ParquetFile(path, pre_buffer=False)
            with path.open("rb") as data:
                check_inflation(self._file.metadata, data, size)
        except (self._arrow.ArrowException, OSError, ValueError) as error:
            raise self._unreadable(error) from error
        metadata = self._file.metadata
        counts = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._begins: list[int] = [0, *accumulate(counts)]
        self.columns: tuple[str, ...] = tuple(self._file.schema_arrow.names)
        self._recent = OrderedDict[tuple[int, tuple[str, ...]], Table]()

    def __len__(self) -> int:
        return self._begins[-1]

    @property
    def memory_bytes(self) -> int:
        return sum(int(table.nbytes) for table in self._recent.values())

    @property
    def groups(self) -> int:
        """Row groups."""
        return len(self._begins) - 1

    def read_group(self, group: int, columns: tuple[str, ...]) -> Table:
        """Columns of a row group. Raises InvalidJob for what cannot be read."""
        key = group, columns
        table = self._recent.pop(key, None)
        if table is None:
            try:
                table = self._file.read_row_group(group, columns=list(columns), use_threads=False)
            except (self._arrow.ArrowException, OSError, KeyError, ValueError) as error:
                raise self._unreadable(error) from error
        self._recent[key] = table
        while len(self._recent) > _GROUPS:
            self._recent.popitem(last=False)
        return table

    def read_row(self, row: int, columns: tuple[str, ...]) -> dict[str, Any]:
        """Columns of a row, by their names. Raises InvalidJob for what cannot be read."""
        group = next(group for group in range(self.groups) if row < self._begins[group + 1])
        table = self.read_group(group, columns)
        values: dict[str, Any] = table.slice(row - self._begins[group], 1).to_pylist()[0]
        return values

    def _unreadable(self, error: Exception) -> InvalidJob:
        return InvalidJob([Problem(self._name, f"is not a readable episode: {error}")])
