"""Finds the runs in the stores that a user names: a URL is one run's store, or that of several, one level below."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_store.errors import StoreError

from ...archive import open_store
from ..open_archive import open_archive
from .stored_run import StoredRun

MOST_RUNS = 200
"""Of one URL."""


def find_stored_runs(urls: Sequence[str], folder: Path) -> list[StoredRun]:
    """The runs of these URLs, with copies of their files below `folder`. Raises InvalidJob for a URL without a run, and
    UnusableStore for a store that cannot be opened."""
    runs: dict[str, StoredRun] = {}
    for named in urls:
        before = len(runs)
        for url in _find_urls(named):
            id = hashlib.sha256(url.encode()).hexdigest()[:16]
            runs[id] = StoredRun(id, url, partial(open_archive, url), folder / id)
        if len(runs) == before:
            raise InvalidJob(
                [Problem(named, "holds no checkpoint, and neither does what is one level below")]
            )
    return list(runs.values())


def _find_urls(named: str) -> Iterator[str]:
    url = open_store.url(named).rstrip("/")
    try:
        if (archive := open_archive(url)).entries():
            yield url
            return
        for name in archive.store.folders()[:MOST_RUNS]:
            if open_archive(f"{url}/{name}").entries():
                yield f"{url}/{name}"
    except StoreError as error:
        raise InvalidJob([Problem(named, str(error))]) from None
