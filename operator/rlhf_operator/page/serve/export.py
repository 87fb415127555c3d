"""Writes the page with the data of runs in it: one file that a browser opens without a server or a request."""

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host import strict_json

from ...console.exits import Failure
from ..answers.paths import answer
from ..folder.catalog import Catalog
from ..folder.run_folder import RunFolder
from ..refusal import Refusal
from .static_files import MISSING, find_assets

MOST_RUNS, MOST_COMPARED = 50, 20
"""The newest ones that are exported; each of so many is compared with each."""
_SAMPLES, _TOKENS, _STEPS = 500, 64, 200
"""Of a run, the newest: samples, samples with their tokens, steps with their parts."""
_BINS = 20
_INLINED = (
    (re.compile(r'<link rel="stylesheet" href="([\w.-]+)">'), "style", "<style>", "</style>"),
    (
        re.compile(r'<script type="module" src="([\w.-]+)"></script>'),
        "script",
        '<script type="module">',
        "</script>",
    ),
)
_ICON = re.compile(r'(<link rel="icon" href=")([\w.-]+)(">)')
_HEAD = re.compile(r'<meta charset="utf-8">')


def export_page(catalog: Catalog, folder: Path) -> tuple[Path, int]:
    """Writes `index.html` in a new or empty folder; returns it, and how many runs are in it. Raises InvalidJob for a
    folder that holds something, and Failure without a built page."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidJob([Problem(str(folder), "is there already; name another folder")])
    page = inlined_page({path: asset.file for path, asset in find_assets().items()})
    replies = dict(collect_replies(catalog))
    data = strict_json.dumps({"replies": replies}).replace("<", "\\u003c")
    place, end = page.partition("</body>")[::2]
    if not replies["/runs"]["runs"]:
        raise InvalidJob([Problem(", ".join(map(str, catalog.places)), "holds no run")])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    part = folder / ".index.html.part"
    try:
        with part.open("w", encoding="utf-8") as out:
            out.writelines(
                [place, '<script type="application/json" id="export">', data, "</script></body>", end]
            )
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file, len(replies["/runs"]["runs"])


def inlined_page(files: Mapping[str, Path]) -> str:
    """The built page as one document, which may load nothing, and run only what is built. Raises Failure without
    one."""
    if "/" not in files:
        raise Failure(MISSING)
    page, hashes = files["/"].read_text(encoding="utf-8"), dict[str, str]()
    for pattern, kind, begin, end in _INLINED:
        match = pattern.search(page)
        content = (
            files[f"/{match[1]}"].read_text(encoding="utf-8") if match and f"/{match[1]}" in files else ""
        )
        if match is None or not content or end[:-1] in content or "<!--" in content:
            raise Failure(f"the built page has no {kind} that can be exported; `make page` builds it anew")
        page = page.replace(match[0], f"{begin}{content}{end}")
        hashes[kind] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = _HEAD.sub(
        lambda head: f'{head[0]}<meta http-equiv="Content-Security-Policy" content="{policy}">', page, count=1
    )
    return _ICON.sub(
        lambda icon: f"{icon[1]}{_data_address(files.get(f'/{icon[2]}'))}{icon[3]}", page, count=1
    )


def collect_replies(catalog: Catalog) -> Iterator[tuple[str, Any]]:
    """Paths of the API, as the page asks for them, with their replies; without those that have none."""
    runs = answer(catalog, "/runs", {})["runs"][:MOST_RUNS]
    yield "/runs", {"runs": runs}
    for run in runs:
        _read_samples(catalog.run(run["id"]))
        yield from _replies_of(catalog, f"/runs/{run['id']}")
    for first, second in combinations([run["id"] for run in runs[:MOST_COMPARED]], 2):
        for a, b in ((first, second), (second, first)):
            yield from _reply(catalog, "/compare", a=a, b=b)


def _read_samples(run: RunFolder | None) -> None:
    """Reads all, as the replies say how many there are."""
    while run is not None and run.samples.refresh().is_being_read:
        pass


def _replies_of(catalog: Catalog, path: str) -> Iterator[tuple[str, Any]]:
    for part in ("", "/marks", "/alarms", "/clones", "/evaluations", "/metrics"):
        yield from _reply(catalog, f"{path}{part}")
    yield from _reply(catalog, f"{path}/metrics", names="*")
    samples = dict(_reply(catalog, f"{path}/samples", limit=_SAMPLES)).popitem()[1]
    yield f"{path}/samples", samples
    steps = list(dict.fromkeys(sample["step"] for sample in samples["samples"]))
    for step in steps:
        yield from _reply(catalog, f"{path}/scores", step=step, bins=_BINS)
    for sample in samples["samples"][:_TOKENS]:
        yield from _reply(catalog, f"{path}/samples/{sample['id']}/tokens")
    for step in _last_steps(catalog, path):
        yield from _reply(catalog, f"{path}/timeline", step=step)


def _last_steps(catalog: Catalog, path: str) -> list[int]:
    timeline = [reply for _, reply in _reply(catalog, f"{path}/timeline")]
    return timeline[0]["steps"][-_STEPS:] if timeline else []


def _reply(catalog: Catalog, path: str, **query: object) -> Iterator[tuple[str, Any]]:
    words = {name: str(value) for name, value in query.items()}
    try:
        reply = answer(catalog, path, words)
    except (Refusal, InvalidJob):  # such as tokens that no checkpoint has any more
        return
    yield path + "?" * bool(words) + "&".join(f"{name}={value}" for name, value in words.items()), reply


def _data_address(file: Path | None) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(file.read_bytes()).decode()}" if file else "data:,"
