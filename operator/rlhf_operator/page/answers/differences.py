"""Differences between two runs: their manifests, the content of their data, their code, and their versions."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlhf_api.host.redaction import masked
from rlhf_api.sections.data import parsed
from rlhf_api.spec import Spec

from ...local.records.changes import Change, changed_values
from ..folder.run_folder import RunFolder
from .checkpoints import read_data_sums
from .details import read_starts

_OWN = ("spec.checkpoint.store",)
"""Each run has one of its own."""


def list_differences(first: RunFolder, second: RunFolder) -> dict[str, Any]:
    """`/compare?a=&b=`."""
    sums = read_data_sums(first), read_data_sums(second)
    changes = [
        change
        for change in (
            *changed_values("spec", *_complete(first.spec(), second.spec())),
            *_of_data(*sums),
            *_of_starts(first, second),
        )
        if change.field not in _OWN and not _has_same_rows(change, *sums)
    ]
    return {"differences": [{"path": each.field, "a": each.old, "b": each.new} for each in changes]}


def _complete(*specs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Specs with every field, as a work directory has them: a store and a cluster have those that are set. As they are
    where one is of another release."""
    try:
        parsed_specs = [Spec.model_validate_json(json.dumps(spec), extra="ignore") for spec in specs]
    except ValueError:
        yield from map(dict, specs)
        return
    for spec in parsed_specs:
        yield masked(spec.model_dump(mode="json", by_alias=True))


def _of_data(first: Mapping[str, int], second: Mapping[str, int]) -> Iterator[Change]:
    """Files that both runs read by the same path, each with other rows."""
    for path in first.keys() & second.keys():
        if first[path] != second[path]:
            yield Change(
                f"data {path}", *(f"rows with checksum {sums[path]:08x}" for sums in (first, second))
            )


def _has_same_rows(change: Change, first: Mapping[str, int], second: Mapping[str, int]) -> bool:
    """True for two paths, with equal weights if any, of the same rows."""
    old, new = (_read_source(value, sums) for value, sums in ((change.old, first), (change.new, second)))
    return old is not None and old == new


def _read_source(value: object, sums: Mapping[str, int]) -> tuple[int, float | None] | None:
    """Checksum and weight of what a field names; None for what is no path of data."""
    if not isinstance(value, str):
        return None
    try:
        source = parsed(value)
    except ValueError:
        return None
    return (sums[source.path], source.weight) if source.path in sums else None


def _of_starts(first: RunFolder, second: RunFolder) -> Iterator[Change]:
    """Commit, versions and digests of code, as of the last start of each."""
    a, b = (_last_start(run) for run in (first, second))
    for key in ("commit", "changed", "versions", "code"):
        yield from changed_values(key, a.get(key), b.get(key))


def _last_start(run: RunFolder) -> Mapping[str, Any]:
    starts = read_starts(run)
    return starts[-1] if starts else {}
