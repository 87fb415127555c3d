"""Opens a store that a user names; the store's packages are imported only when a verb runs."""

import argparse
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from rlhf_api.problems import InvalidJob, Problem

from ..exits import Failure

if TYPE_CHECKING:
    from rlhf_store.archive import Archive, Snapshot


def run(options: argparse.Namespace) -> int:
    """Runs the verb in `options.does`; returns the exit code."""
    try:
        code: int = options.does(options)
    except RuntimeError as error:  # a failing store, or a damaged checkpoint
        raise Failure(str(error)) from error
    return code


def package(name: str) -> Any:
    """Imports a module. Raises InvalidJob if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        message = f"needs {missing}, which is not installed; pip install 'rlhf-operator[store]'"
        raise InvalidJob([Problem("this command", message)]) from error


def archive(store: str) -> "Archive":
    """Opens the store of a URL, a directory, or a run's work directory. Raises InvalidJob if there is none."""
    opened: Archive = package("rlhf_store.archive").Archive(url(store))
    return opened


def url(store: str) -> str:
    """The store's URL. A directory must exist, since opening a store would create it."""
    scheme, separator, rest = store.partition("://")
    if separator and scheme != "file":
        return store
    folder = Path(unquote(rest) if separator else store)
    if not folder.is_dir():
        raise InvalidJob([Problem(store, "no such directory, and no URL of a store (s3://, gs://, az://)")])
    inner = folder / "checkpoints"  # the default store of a run
    return (inner if inner.is_dir() else folder).resolve().as_uri()


def newest(store: str) -> "Snapshot":
    """The newest snapshot. Raises InvalidJob if there is none, DamagedSnapshot if it is damaged."""
    found = archive(store)
    entries = found.entries()
    if not entries:
        raise InvalidJob([Problem(store, "holds no checkpoint")])
    return found.open(entries[-1])
