"""Ten thousand mutated roots, manifests and segments: an error, or what was meant; never a crash or a wrong load."""

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from safetensors.torch import save
from tests.unit.store.conftest import ALONE, Place

from rlhf_store.archive import Archive
from rlhf_store.archive import Snapshot as Stored
from rlhf_store.errors import DamagedSnapshot, UnusableStore
from rlhf_store.manifest import (
    Entry,
    Root,
    _signed,
    decode_manifest,
    decode_root,
    digest_of,
    encode_manifest,
    encode_root,
)
from rlhf_trainer.checkpoint.reading import Snapshot
from rlhf_trainer.transport.wire import WireError, decode

MANY = 2500


def bytes_changed(draw: random.Random, data: bytes) -> bytes:
    """As disks, networks and interrupted writes do it."""
    at, length = draw.randrange(len(data)), draw.randrange(1, 9)
    return draw.choice(
        [
            data[:at],
            data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :],
            data[:at] + draw.randbytes(length) + data[at:],
            data[:at] + data[at + length :],
            data[:at] + draw.randbytes(length) + data[at + length :],
            data[at:] + data[:at],
        ]
    )


def values_changed(draw: random.Random, content: Any) -> Any:
    """As another version, or somebody's editor, writes it: well-formed, with something else somewhere inside."""
    if isinstance(content, dict) and content and draw.random() < 0.9:
        key = draw.choice(list(content))
        changed = {**content, key: values_changed(draw, content[key])}
        if draw.random() < 0.1:
            del changed[key]
        return changed
    if isinstance(content, list) and content and draw.random() < 0.9:
        at = draw.randrange(len(content))
        return [*content[:at], values_changed(draw, content[at]), *content[at + 1 :]]
    odd = [None, -1, 0, 2**70, 1.5, float("inf"), "", "x", "../" * 9, [], {}, [[]], {"a": 1}, True]
    return draw.choice(odd)


def outcome(load: Callable[[], Any], *errors: type[Exception]) -> Any:
    """Calls `load`; returns its result, or None if it raises one of `errors`."""
    try:
        return load()
    except errors:
        return None


@pytest.fixture
def stored(directory: Place) -> Stored:
    directory.trainer().save(3, reward=0.5)
    archive = Archive(directory.url)
    return archive.open(archive.entries()[0])


def test_roots():
    snapshots = [Entry(step=i, epoch=1, digest=f"{i:064x}", time="2026-11-21T00:00:00+00:00") for i in (1, 2)]
    root = Root(epoch=3, owner="me", cuts=tuple(snapshots))
    data, draw = encode_root(root), random.Random(1)
    for _ in range(MANY):
        assert outcome(lambda: decode_root(bytes_changed(draw, data)), DamagedSnapshot) in (None, root)
        changed = values_changed(draw, json.loads(data))
        text = json.dumps(_signed(changed) if isinstance(changed, dict) else changed).encode()
        read = outcome(lambda text=text: decode_root(text), DamagedSnapshot, UnusableStore)
        assert isinstance(read, Root | None)


def test_manifests(stored):
    data, draw = encode_manifest(stored.manifest), random.Random(2)
    for _ in range(MANY):
        decoded = outcome(lambda: decode_manifest(bytes_changed(draw, data), stored.entry), DamagedSnapshot)
        assert decoded in (None, stored.manifest)
        text = json.dumps(values_changed(draw, json.loads(data))).encode()
        entry = stored.entry.model_copy(update={"digest": digest_of(text)})
        read = outcome(lambda text=text, entry=entry: decode_manifest(text, entry), DamagedSnapshot)
        if read is None:
            continue
        outcome(partial(read_all, Snapshot(ALONE, Stored(stored._store, entry, read))), DamagedSnapshot)


def read_all(snapshot: Snapshot) -> None:
    """Reads every tensor and blob of the snapshot: its manifest may name some that the store lacks."""
    for group in snapshot.groups:
        assert all(isinstance(tensor, torch.Tensor) for tensor in snapshot.tensors(group).values())
    assert all(isinstance(snapshot.blob(name), bytes) for name in snapshot.blobs)


def test_segments():
    batch = {"weight": torch.arange(6.0).reshape(2, 3), "step": torch.tensor(7)}
    data, draw = save(batch), random.Random(3)
    for _ in range(MANY):
        mutated = bytes_changed(draw, data)
        decoded = outcome(lambda mutated=mutated: decode(mutated), WireError)
        assert decoded is None or all(isinstance(tensor, torch.Tensor) for tensor in decoded[0].values())
        assert digest_of(mutated) != digest_of(data) or mutated == data
