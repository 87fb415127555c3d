"""A run's checkpoints and tokens, from its store: in its folder, or where its manifest says."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlhf_store.errors import DamagedSnapshot

from ...archive.open_store import package
from ...archive.tokens import read_tokens
from ..folder.run_folder import RunFolder
from ..folder.sample_list import find_sample
from ..refusal import Refusal

if TYPE_CHECKING:
    from rlhf_store.archive import Archive

_PATIENCE = timedelta(seconds=3)
"""Time for which a store may fail: others wait for the reply too."""
_MOST_SIZES = 4096
_sizes = dict[str, int]()
"""Bytes by the key of a manifest, which its content is named by."""


def list_checkpoints(run: RunFolder) -> list[dict[str, Any]]:
    """The checkpoints that can be read now, the oldest first."""
    checkpoints = _open_store(run)
    if checkpoints is None:
        return []
    try:
        return [
            {
                "step": entry.step,
                "created": entry.time,
                "bytes": _size(checkpoints, entry),
                "evaluation": entry.reward,
                "good": entry.good,
                "epoch": entry.epoch,
            }
            for entry in checkpoints.entries()
        ]
    except RuntimeError:  # a store that fails; the rest of the run is there
        return []


def list_tokens(run: RunFolder, id: str) -> dict[str, Any]:
    """`/runs/{id}/samples/{sample}/tokens`. Raises Refusal without them."""
    placed, number = find_sample(run.samples.refresh(), id)
    checkpoints = _open_store(run)
    if checkpoints is None:
        raise Refusal(404, "the run has no checkpoints, which have the tokens of the newest responses")
    try:
        return {"tokens": read_tokens(checkpoints, placed.sample, number)}
    except RuntimeError as error:
        raise Refusal(404, f"the store cannot be read: {error}") from None


def _open_store(run: RunFolder) -> "Archive | None":
    """The store; None without one. What its folder has is read only if it is there: opening one makes it."""
    if (known := run.store()) is not None:
        return known
    inner = run.folder / "checkpoints"
    section = run.spec().get("checkpoint")
    store = section.get("store") if isinstance(section, dict) else None
    if inner.is_dir():
        url = inner.resolve().as_uri()
    elif isinstance(store, str) and "://" in store and not store.startswith("file:"):
        url = store
    else:
        return None
    opened: Archive = package("rlhf_store.archive").Archive(url, patience=_PATIENCE)
    return opened


def _size(checkpoints: "Archive", entry: Any) -> int | None:
    if (size := _sizes.get(entry.key)) is None:
        try:
            size = sum(segment.size for segment in checkpoints.open(entry).manifest.segments())
        except DamagedSnapshot:
            return None
        if len(_sizes) >= _MOST_SIZES:
            _sizes.clear()
        _sizes[entry.key] = size
    return size
