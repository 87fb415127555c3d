"""Checkpoint stores with chosen blobs, committed as a trainer does."""

from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import JsonValue

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.ranks.ranks import Ranks


def fill_store(
    place: Path | str,
    blobs: Mapping[str, bytes],
    step: int = 3,
    reward: float | None = None,
    state: Mapping[str, JsonValue] | None = None,
) -> str:
    """A store, by its folder or URL, with a checkpoint of this step, evaluation and state; returns its URL."""
    archive = Archive(url := place.as_uri() if isinstance(place, Path) else place)
    committer = Committer.take_over(archive, Retention())
    saver = Saver(Ranks(0, 1, torch.device("cpu")), archive, committer, committed=lambda _entry: None)
    functions = {name: lambda data=data: data for name, data in blobs.items()}
    saver.begin(step, dict(state or {}), {"model": {"weight": torch.ones(3)}.items()}, functions, reward)
    saver.finish()
    return url


def damage_store(place: Path) -> None:
    """Overwrites every object of a store in a folder."""
    for file in place.rglob("*"):
        if file.is_file():
            file.write_bytes(b"no checkpoint")
