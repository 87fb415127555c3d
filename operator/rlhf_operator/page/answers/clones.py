"""Finds the runs that start from a checkpoint of another one, by the stores that they name."""

from collections.abc import Sequence
from typing import Any

from ..folder.run_folder import RunFolder

_INNER = "checkpoints"
"""The store in a work directory, unless the manifest names another."""


def list_clones(runs: Sequence[RunFolder], run: RunFolder) -> dict[str, Any]:
    """`/runs/{id}/clones`."""
    origin, own, clones = _read_origin(run), _name_stores(run), list[dict[str, Any]]()
    begin: dict[str, Any] | None = origin and {**origin, "run": None}
    for other in runs:
        theirs = _read_origin(other)
        if theirs is not None and theirs["store"] in own and other.id != run.id:
            clones.append({"step": theirs["step"], "run": _describe(other)})
        if begin is not None and begin["store"] in _name_stores(other) and other.id != run.id:
            begin["run"] = _describe(other)
    return {"origin": begin, "clones": sorted(clones, key=lambda each: each["step"])}


def _read_origin(run: RunFolder) -> dict[str, Any] | None:
    """Store and step that the run starts from; None for one that starts anew."""
    origin = _section(run).get("startFrom")
    if not isinstance(origin, dict):
        return None
    store, step = origin.get("store"), origin.get("step")
    return {"store": _trim(store), "step": step} if isinstance(store, str) and type(step) is int else None


def _name_stores(run: RunFolder) -> set[str]:
    """URLs of the run's store, as a clone may name it."""
    store = _section(run).get("store")
    urls = [(run.folder / _INNER).resolve().as_uri(), run.place, store if isinstance(store, str) else ""]
    return {_trim(url) for url in urls if "://" in url}


def _section(run: RunFolder) -> dict[str, Any]:
    section = run.spec().get("checkpoint")
    return section if isinstance(section, dict) else {}


def _trim(url: str) -> str:
    return url.rstrip("/")


def _describe(run: RunFolder) -> dict[str, Any]:
    summary = run.summary()
    return {key: summary[key] for key in ("id", "name", "phase", "step", "reward", "heldOut")}
