"""Reads a selftest run's results from its work directory, and serializes them in a pod there.

`python -m rlhf_operator.selftest.left DIR MODEL...` prints it as JSON lines, `... --remove DIR` deletes the directory.
"""

import argparse
import hashlib
import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.estimate.model_files import tensor_entries
from rlhf_api.host import strict_json
from rlhf_api.host.printing import write_line

from ..archive import open_store

if TYPE_CHECKING:
    from rlhf_store.archive import Snapshot

STEPS = "metrics.jsonl"
_JUDGED = ("ledger", "position")
"""Keys of a snapshot's state that are judged."""

_MASTER = "parameters/"
"""Prefix of the trained float32 parameters among a snapshot's tensors; optimizer moments have others."""

Digests = Mapping[str, str]
"""sha256 of each parameter, by `<model>/<name>`."""

Parameters = tuple[int, Digests]
"""Step of a snapshot, and digests of its trained parameters."""


@dataclass
class RunResults:
    """Results of a run: lines of metrics.jsonl, the oldest and the newest snapshot (one if there is only one), and the
    newest one's ledger or data position."""

    lines: list[Mapping[str, Any]] = field(default_factory=list)
    snapshots: list[Parameters] = field(default_factory=list)
    state: Mapping[str, Any] | None = None


def left_by(folder: Path, models: Sequence[str]) -> RunResults:
    """Results of an ended run in this folder, with the parameters of these models. Raises RuntimeError if a snapshot
    cannot be read."""
    snapshots = _snapshots(folder)
    ends = [snapshots[0], snapshots[-1]] if len(snapshots) > 1 else snapshots
    file = folder / STEPS
    return RunResults(
        [strict_json.figures(line) for line in file.read_text().splitlines()] if file.exists() else [],
        [(each.step, digests(each, models)) for each in ends],
        {name: snapshots[-1].state[name] for name in _JUDGED if name in snapshots[-1].state}
        if snapshots
        else None,
    )


def to_lines(left: RunResults) -> Iterator[str]:
    """Serializes to short lines: a kubelet truncates long ones."""
    yield from (json.dumps({"line": line}) for line in left.lines)
    for step, parameters in left.snapshots:
        yield json.dumps({"snapshot": step})
        yield from (json.dumps({"parameter": name, "digest": parameters[name]}) for name in parameters)
    yield json.dumps({"state": left.state})


def from_lines(lines: Iterable[str]) -> RunResults:
    """Inverse of `to_lines`. Raises ValueError if lines are missing."""
    left, whole = RunResults(), False
    for line in lines:
        match json.loads(line):
            case {"line": dict(values)}:
                left.lines.append(values)
            case {"snapshot": int(step)}:
                parameters: dict[str, str] = {}
                left.snapshots.append((step, parameters))
            case {"parameter": str(name), "digest": str(digest)}:
                parameters[name] = digest
            case {"state": state}:
                left.state, whole = state, True
    if not whole:
        raise ValueError("the report is not whole")
    return left


def main() -> None:
    parser = argparse.ArgumentParser(prog="rlhf_operator.selftest.left")
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--remove", action="store_true")
    options = parser.parse_args()
    if options.remove:
        shutil.rmtree(options.folder, ignore_errors=True)
        return
    for line in to_lines(left_by(options.folder, options.models)):
        write_line(line, sys.stdout)


def _snapshots(folder: Path) -> "list[Snapshot]":
    """Snapshots of the run, oldest first."""
    if not (folder / "checkpoints").is_dir():
        return []
    archive = open_store.archive(str(folder))
    return [archive.open(entry) for entry in archive.entries()]


def digests(snapshot: "Snapshot", models: Iterable[str]) -> Digests:
    """Digests of every trained parameter of these models. Raises DamagedSnapshot, and KeyError for a model that the
    snapshot lacks.
    """
    return {
        f"{model}/{name.removeprefix(_MASTER)}": digest
        for model in models
        for segment in snapshot.manifest.groups[model]
        for name, digest in of_file(snapshot.read(segment)).items()
        if name.startswith(_MASTER)
    }


def of_file(data: bytes) -> Digests:
    """Digests of every tensor of a safetensors file."""
    file = io.BytesIO(data)
    header = tensor_entries(file)
    body = memoryview(data)[file.tell() :]
    return {
        name: hashlib.sha256(body[slice(*about["data_offsets"])]).hexdigest()
        for name, about in header.items()
    }


if __name__ == "__main__":
    main()
