"""Copies what a run's newest checkpoint has for readers into a folder, each file once it is asked for."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_store.errors import UnusableStore

from ..open_archive import FAILED_SECONDS

if TYPE_CHECKING:
    from rlhf_store.archive import Archive, Snapshot

MOST_BYTES = 128 << 20
"""Of a file that is copied."""
_FRESH_SECONDS = 2.0
"""Time for which the newest checkpoint is not asked for again."""
OpenStore = Callable[[], "Archive"]


class StoreCopy:
    """A folder with files of a store's newest checkpoint. Not for several threads at once."""

    def __init__(self, open_store: OpenStore, folder: Path) -> None:
        self._open, self.folder = open_store, folder
        self._store: Archive | None = None
        self._snapshot: Snapshot | None = None
        self._asks_at = 0.0
        self._digests: dict[str, tuple[str, ...]] = {}
        """Of the parts of each file in the folder."""
        self.problem = ""
        """The error of the store, or of a file in it, when it was last asked; empty without one."""

    def store(self) -> "Archive":
        """The store. Raises UnusableStore, and InvalidJob without its packages."""
        if self._store is None:
            self._store = self._open()
        return self._store

    def snapshot(self) -> "Snapshot | None":
        """The newest checkpoint; None before the first one. The last one that was read, if the store fails."""
        if time.monotonic() >= self._asks_at:
            self.problem = ""
            try:
                entries = self.store().entries()
                newest = entries[-1] if entries else None
                if newest is None or self._snapshot is None or self._snapshot.entry != newest:
                    self._snapshot = None if newest is None else self.store().open(newest)
            except (RuntimeError, UnusableStore) as error:
                self.problem = str(error)
            self._asks_at = time.monotonic() + (FAILED_SECONDS if self.problem else _FRESH_SECONDS)
        return self._snapshot

    def fetch(self, name: str) -> None:
        """Brings a file up to date; one that the checkpoint lacks is removed. What goes wrong is `problem`."""
        snapshot = self.snapshot()
        if snapshot is None or not (parts := snapshot.parts(name)):
            if self._digests.pop(name, None) is not None:
                (self.folder / name).unlink(missing_ok=True)
            return
        digests = tuple(part.digest for part in parts)
        if self._digests.get(name) == digests:
            return
        if (size := sum(part.size for part in parts)) > MOST_BYTES:
            self.problem = f"{name} has {size >> 20} MiB, and {MOST_BYTES >> 20} can be shown"
            return
        file = self.folder / name
        new = file.with_name(f".{file.name}.new")
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            snapshot.download(name, new)
        except RuntimeError as error:
            self._asks_at = 0.0  # a newer checkpoint may have replaced it
            self.problem = str(error)
            return
        new.replace(file)
        self._digests[name] = digests

    def clear(self) -> None:
        """Deletes the files, which are copied again when they are asked for."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._digests.clear()
