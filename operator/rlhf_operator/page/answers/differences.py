"""Differences between two runs: their manifests, their code, and the versions they ran with."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...local.records.changes import Change, changed_values
from ..folder.run_folder import RunFolder
from .details import read_starts

_OWN = ("spec.checkpoint.store",)
"""Each run has one of its own."""


def list_differences(first: RunFolder, second: RunFolder) -> dict[str, Any]:
    """`/compare?a=&b=`."""
    changes = [
        change
        for change in (
            *changed_values("spec", dict(first.spec()), dict(second.spec())),
            *_of_starts(first, second),
        )
        if change.field not in _OWN
    ]
    return {"differences": [{"path": each.field, "a": each.old, "b": each.new} for each in changes]}


def _of_starts(first: RunFolder, second: RunFolder) -> Iterator[Change]:
    """Commit, versions and digests of code, as of the last start of each."""
    a, b = (_last_start(run) for run in (first, second))
    for key in ("commit", "changed", "versions", "code"):
        yield from changed_values(key, a.get(key), b.get(key))


def _last_start(run: RunFolder) -> Mapping[str, Any]:
    starts = read_starts(run)
    return starts[-1] if starts else {}
