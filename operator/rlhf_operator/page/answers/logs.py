"""The logs of a run's processes: which there are, and the end of one, of all its starts or of a chosen one."""

import re
from pathlib import Path
from typing import Any

from ...archive.run_files import read_last
from ...local.records import workdir
from ..folder.run_folder import RunFolder, iso_time
from ..refusal import Query, Refusal, read_count

_NAME = re.compile(r"([a-z][a-z-]{0,30}?)-(\d{1,5}(?:-\d{1,5})?)\.log(?:\.[1-3])?")
_START = "=== "
"""Begin of a line that the host writes before each start."""
_TAIL, _MOST_TAIL = 65_536, 1 << 20
_MOST_FILES = 512


def list_logs(run: RunFolder, query: Query) -> dict[str, Any]:
    """`/runs/{id}/logs`: the files, of one role or of all; the newest part of a log is in the file without a number."""
    role = query.get("role")
    files = []
    for file in sorted((run.folder / workdir.LOGS).glob("*.log*"))[:_MOST_FILES]:
        match = _NAME.fullmatch(file.name)
        if match is None or (role and match[1] != role) or file.is_symlink() or not file.is_file():
            continue
        state = file.stat()
        files.append(
            {"name": file.name, "role": match[1], "bytes": state.st_size, "updated": iso_time(state.st_mtime)}
        )
    return {"files": files}


def read_log(run: RunFolder, name: str, query: Query) -> dict[str, Any]:
    """`/runs/{id}/logs/{name}`: at most `tail` bytes of its end; with `attempt`, of that start, from 1. Raises
    Refusal."""
    tail, attempt = read_count(query, "tail", _TAIL, 1, _MOST_TAIL), read_count(query, "attempt", 0)
    if _NAME.fullmatch(name) is None:
        raise Refusal(404, "no such log; /logs has their names")
    try:
        text = read_last(run.folder, str(Path(workdir.LOGS, name)), 16 * _MOST_TAIL if attempt else tail)
    except OSError:
        raise Refusal(404, "no such log; /logs has their names") from None
    lines = text.decode(errors="replace").splitlines(keepends=True)
    begins = [place for place, line in enumerate(lines) if line.startswith(_START)]
    if attempt:
        if attempt > len(begins):
            raise Refusal(404, f"attempt must be one of the {len(begins)} starts in this file; got {attempt}")
        lines = lines[begins[attempt - 1] : begins[attempt] if attempt < len(begins) else None]
    return {"name": name, "attempts": len(begins), "text": "".join(lines)[-tail:]}
