"""Opens a store that a user names; the store's packages are imported only when a verb runs."""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_store.errors import DamagedSnapshot

from ..console.exits import Failure

if TYPE_CHECKING:
    from rlhf_store.archive import Archive, Snapshot

T = TypeVar("T")
_READS = 3
"""Checkpoints of a run that goes on that are tried to be read."""


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
    """Opens the store of a URL, a directory, or a run's work directory. Raises InvalidJob if there is none, and
    UnusableStore for a store that cannot be opened."""
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


def sibling_store(store: str, name: str) -> str:
    """Replaces the last part of a store's URL; for a bucket without a path, a bucket of its own name."""
    scheme, _, rest = store.rstrip("/").partition("://")
    parent, slash, last = rest.rpartition("/")
    return f"{scheme}://{parent if slash else last}/{name}"


def read_checkpoint(store: str, read: Callable[["Snapshot"], T], step: int | None = None) -> T:
    """`read(snapshot)` of the checkpoint of `step`, or of the newest one; of that again with a newer one if the run
    deleted it meanwhile.

    Raises:
        InvalidJob: there is no checkpoint, or none of this step.
        DamagedSnapshot: it is damaged.
        Failure: each of several was deleted before it was read.
    """
    checkpoints = archive(store)
    for _ in range(_READS):
        entries = checkpoints.entries()
        if not entries:
            raise InvalidJob([Problem(store, "holds no checkpoint")])
        entry = (
            next((entry for entry in entries if entry.step == step), None)
            if step is not None
            else entries[-1]
        )
        if entry is None:
            steps = ", ".join(str(each.step) for each in entries)
            raise InvalidJob([Problem(store, f"holds no checkpoint of step {step}, but of {steps}")])
        try:
            return read(checkpoints.open(entry))
        except DamagedSnapshot:
            if entry in checkpoints.entries():
                raise
    raise Failure(
        f"{store}: the run deleted {_READS} checkpoints, one after the other, before they were read; keep more of them "
        "(spec.checkpoint.keepLast) or read a copy"
    )
