"""Work directories as runs leave them, written without a run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_operator.local.records import workdir


def write_run(
    folder: Path,
    *,
    name: str = "tiny",
    phase: str = "Succeeded",
    spec: Mapping[str, Any] | None = None,
    steps: Iterable[Mapping[str, Any]] = (),
    evaluations: Iterable[Mapping[str, Any]] = (),
    status: Mapping[str, Any] | None = None,
) -> Path:
    """A folder with the configuration, the status and the figures of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = list(steps)
    document = {"phase": phase, "totalSteps": 40, "step": len(lines), "startTime": "2026-01-01T00:00:00Z"}
    document |= {"completionTime": "2026-01-01T00:10:00Z"} if phase in ("Succeeded", "Failed") else {}
    (folder / workdir.CONFIG).write_text(
        json.dumps({"job": name, "workdir": str(folder), "spec": {"algorithm": "grpo", **(spec or {})}})
    )
    (folder / workdir.STATUS).write_text(json.dumps({**document, **(status or {})}))
    append_lines(folder / workdir.METRICS, lines)
    append_lines(folder / workdir.EVALUATIONS, evaluations)
    return folder


def append_lines(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Appends JSON lines, as a trainer does."""
    with file.open("a") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
