"""The files that the hub's client has downloaded to this machine."""

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The client's cache, by the variables that it reads."""
    home = environ.get("HOME") or str(Path.home())
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    folder = environ.get("HF_HUB_CACHE") or f"{environ.get('HF_HOME') or f'{cache}/huggingface'}/hub"
    return Path(folder).expanduser()


def snapshots(name: str, environ: Mapping[str, str]) -> Path:
    """The folder of a model's versions, which may not exist."""
    return cache_folder(environ) / f"models--{name.replace('/', '--')}" / "snapshots"


def downloaded(name: str, environ: Mapping[str, str]) -> Path | None:
    """The folder with the files of a model's main version that are there so far; None without any."""
    folder = snapshots(name, environ)
    try:
        version = (folder.parent / "refs" / "main").read_text(errors="replace")[:100].strip()
    except OSError:
        return None
    return folder / version if version.isalnum() and (folder / version).is_dir() else None
