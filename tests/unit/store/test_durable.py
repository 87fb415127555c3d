"""All that LATEST names survives a loss of power, in a store that is a directory."""

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.unit.store.conftest import Place


class Disk:
    """Records which files and folders of a store's directory were synced."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._synced = Path(unquote(urlsplit(place.url).path)), set[int]()
        self.unsynced_at = dict[str, set[str]]()
        sync = os.fsync

        def synced(opened: int) -> None:
            sync(opened)
            self._synced.add(os.fstat(opened).st_ino)

        monkeypatch.setattr(os, "fsync", synced)

    def reached(self, point: str) -> None:
        self.unsynced_at[point] = self.unsynced()

    def unsynced(self) -> set[str]:
        """Files and folders that a loss of power may take."""
        unsynced_names = set()
        for path in self._folder.rglob("*"):
            with suppress(FileNotFoundError):  # another thread gives a file its name meanwhile
                if path.name != ".lock" and path.stat().st_ino not in self._synced:
                    unsynced_names.add(path.name)
        return unsynced_names


def test_what_latest_names_is_on_disk_before_it_is_named(directory: Place, monkeypatch: pytest.MonkeyPatch):
    disk = Disk(directory, monkeypatch)
    directory.trainer(reached=disk.reached).save(1)
    assert disk.unsynced_at["latest"] == set()
    assert disk.unsynced() == set(), "LATEST is too"


def test_a_folder_that_its_file_system_cannot_sync_is_used_all_the_same(
    directory: Place, monkeypatch: pytest.MonkeyPatch
):
    sync = os.fsync

    def of_files(opened: int) -> None:
        if Path(f"/proc/self/fd/{opened}").is_dir():
            raise OSError(22, "Invalid argument")
        sync(opened)

    monkeypatch.setattr(os, "fsync", of_files)
    directory.trainer().save(1)
    assert directory.steps() == [1]
