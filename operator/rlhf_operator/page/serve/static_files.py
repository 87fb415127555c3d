"""The page's built files: a table of those that are there, so that a request names none else."""

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[1] / "static"
MISSING = "this installation has no page; `make page` builds it"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Types of the files that are served."""


class Asset(NamedTuple):
    file: Path
    type: str


def find_assets(folder: Path = FOLDER) -> dict[str, Asset]:
    """The files by the path of their address; `/` is the page. Empty without a built page."""
    if not (folder / "index.html").is_file():
        return {}
    files = sorted(file for file in folder.rglob("*") if file.suffix in _TYPES and file.is_file())
    assets = {
        f"/{file.relative_to(folder).as_posix()}": Asset(file, _TYPES[file.suffix])
        for file in files
        if not file.is_symlink()
    }
    return {**assets, "/": Asset(folder / "index.html", _TYPES[".html"])}
