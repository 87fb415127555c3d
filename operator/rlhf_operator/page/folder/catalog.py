"""Finds the runs in the folders that a user names, each by an opaque id: no path comes from a request."""

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem

from ...local.records import workdir
from .run_folder import RunFolder

MOST_RUNS = 1000
DEPTH = 3
"""Levels of folders below a named one in which runs are searched."""
_MOST_ENTRIES = 2000
"""Of a folder that is no run, such as one of data."""
MOST_BYTES = 64 << 20
"""Of the figures and samples in memory, of all runs but the newest one that was used."""
_MARKS = (workdir.CONFIG, workdir.STATUS)


class Catalog:
    """The runs below some folders; not for several threads at once."""

    def __init__(self, places: Sequence[Path], stored: Sequence[RunFolder] = ()) -> None:
        """`stored`: runs that are in no folder. Raises InvalidJob for places that are no directories."""
        problems = [Problem(str(place), "no such directory") for place in places if not place.is_dir()]
        if problems:
            raise InvalidJob(problems)
        self._stored = {run.id: run for run in stored}
        self.places = list(dict.fromkeys(place.resolve() for place in places))
        self._runs: dict[str, RunFolder] = {}
        self._loaded = OrderedDict[str, RunFolder]()

    def runs(self) -> list[RunFolder]:
        """The runs that are there now."""
        folders = dict.fromkeys(folder for place in self.places for folder in _find_runs(place, DEPTH))
        now = dict(self._stored)
        for folder in list(folders)[:MOST_RUNS]:
            id = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
            now[id] = self._runs.get(id) or RunFolder(id, folder)
        self._runs = now
        return list(now.values())

    def run(self, id: str) -> RunFolder | None:
        """The run of this id; None if there is none."""
        if id not in self._runs:
            self.runs()
        return self._runs.get(id)

    def load(self, run: RunFolder) -> None:
        """Reads the run's figures up to now, and frees those of the run that was not used for longest."""
        self._loaded[run.id] = run
        self._loaded.move_to_end(run.id)
        while len(self._loaded) > 1 and sum(each.memory_bytes for each in self._loaded.values()) > MOST_BYTES:
            self._loaded.popitem(last=False)[1].forget()
        run.metrics.refresh()
        run.evaluations.refresh()


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    """The folder, or the runs in it; links to folders are not followed."""
    if any((folder / name).is_file() for name in _MARKS):
        yield folder
        return
    if depth == 0:
        return
    try:
        with os.scandir(folder) as entries:
            inner = [e.name for e, _ in zip(entries, range(_MOST_ENTRIES), strict=False) if _is_folder(e)]
    except OSError:
        return
    for name in sorted(inner):
        yield from _find_runs(folder / name, depth - 1)


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
    except OSError:
        return False
