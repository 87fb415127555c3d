"""Local copies of data that cannot be read by row in place: objects of a store, tables, and datasets of the hub."""

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from rlhf_api.dataset.row_files import TABLES
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.foreign_files import open_regular
from rlhf_api.host.job_files import located
from rlhf_store.errors import Missing, UnusableStore
from rlhf_store.locked import locked
from rlhf_store.store import Store

from ..process import progress
from . import hub
from .tables import write_lines

log = logging.getLogger(__name__)

DAY = 86_400.0
"""Deadline for another process's copy, seconds. A stalled download fails much earlier; this is only a bound."""


def local_file(path: str) -> Path:
    """The JSON or JSONL file of a path or a URL.

    A copy is made once, in `$XDG_CACHE_HOME/rlhf/data` (`~/.cache` unless given), for all processes of the machine.
    Raises InvalidJob where it cannot be had.
    """
    if path.startswith("hf://"):
        return _of_hub(path)
    if path.startswith("file://"):
        file = Path(unquote(urlsplit(path).path))
    else:
        file = _downloaded(path) if "://" in path else located(path)
    if not path.endswith(TABLES):
        return file
    try:
        with open_regular(file) as opened:  # a directory, as Spark writes one, is refused here
            status = os.fstat(opened.fileno())
    except OSError as error:
        raise InvalidJob([Problem(path, f"cannot be read: {error.strerror}")]) from None
    except ValueError:
        raise InvalidJob([Problem(path, "is not a regular file")]) from None
    version = f"{file.resolve()} {status.st_mtime_ns} {status.st_size}"
    return _copy(version, ".jsonl", lambda new: write_lines(path, [file], new))


def _downloaded(url: str) -> Path:
    folder, _, name = url.rpartition("/")
    try:
        store = Store(folder)
        attributes = store.attributes(name)
        version = f"{url} {attributes.tag} {attributes.size} {attributes.modified}"
        return _copy(version, Path(name).suffix, lambda new: store.download(attributes, new))
    except UnusableStore as error:
        raise InvalidJob([Problem(url, str(error))]) from None
    except Missing:
        raise InvalidJob([Problem(url, "cannot be read: there is no such object")]) from None


def _of_hub(url: str) -> Path:
    """The copy of the split's newest revision; where the hub gives no answer, that of the last one which was asked
    for."""
    last = _place(url, ".last")
    try:
        split = hub.find_split(url)
        copy = _copy(f"{url} {split.revision}", ".jsonl", lambda new: _write_split(url, split, new))
    except hub.Unreachable as error:
        copy = last.with_name(last.read_text()) if last.exists() else last
        if not copy.exists():
            raise hub.problem(url, error) from None
        log.warning("%s: the hub cannot be reached (%s); its rows are those of the last copy", url, error)
        return copy
    new = last.with_suffix(f".{os.getpid()}")
    new.write_text(copy.name)
    new.replace(last)
    return copy


def _write_split(url: str, split: hub.Split, new: Path) -> None:
    with TemporaryDirectory(dir=new.parent) as folder:
        write_lines(url, hub.download(split, Path(folder)), new)


def _place(version: str, suffix: str) -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rlhf", "data")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{hashlib.sha256(version.encode()).hexdigest()[:32]}{suffix}"


def _copy(version: str, suffix: str, make: Callable[[Path], None]) -> Path:
    copy = _place(version, suffix)
    folder = copy.parent
    with locked(copy.with_suffix(".lock"), DAY):
        if not copy.exists():
            new = copy.with_suffix(".new")
            with progress.growing(folder):
                make(new)
            new.replace(copy)
    return copy
