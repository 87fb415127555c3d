"""Finds the runs in the stores that a user names: a URL is one run's store, or that of several, one level below."""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_store.errors import StoreError

from ...archive import open_store
from .stored_run import StoredRun

if TYPE_CHECKING:
    from rlhf_store.archive import Archive

MOST_RUNS = 200
"""Of one URL."""
PATIENCE = timedelta(seconds=3)
"""Time for which a store may fail: other requests wait for the reply too."""


def find_stored_runs(urls: Sequence[str], folder: Path) -> list[StoredRun]:
    """The runs of these URLs, with copies of their files below `folder`. Raises InvalidJob for a URL without a run, and
    UnusableStore for a store that cannot be opened."""
    runs: dict[str, StoredRun] = {}
    for named in urls:
        before = len(runs)
        for url in _find_urls(named):
            id = hashlib.sha256(url.encode()).hexdigest()[:16]
            runs[id] = StoredRun(id, url, partial(_open, url), folder / id)
        if len(runs) == before:
            raise InvalidJob(
                [Problem(named, "holds no checkpoint, and neither does what is one level below")]
            )
    return list(runs.values())


def _find_urls(named: str) -> Iterator[str]:
    url = open_store.url(named).rstrip("/")
    try:
        if (archive := _open(url)).entries():
            yield url
            return
        for name in archive.store.folders()[:MOST_RUNS]:
            if _open(f"{url}/{name}").entries():
                yield f"{url}/{name}"
    except StoreError as error:
        raise InvalidJob([Problem(named, str(error))]) from None


def _open(url: str) -> "Archive":
    opened: Archive = open_store.package("rlhf_store.archive").Archive(url, patience=PATIENCE)
    return opened
