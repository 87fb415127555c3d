"""Cuts in a directory and in S3: whole or not there, and never worse off for a damaged one."""

import logging
import threading

import obstore
import pytest
import torch
from tests.unit.store.conftest import ALONE, assert_is, tensors

from rlhf_store import store as store_module
from rlhf_store.archive import Archive
from rlhf_store.connecting import connect
from rlhf_store.errors import DamagedSnapshot, StoreError, TooLarge
from rlhf_store.retention import Retention
from rlhf_store.store import FIRST_PATIENCE, Store, StoreOptions
from rlhf_trainer.checkpoint import segments as module
from rlhf_trainer.checkpoint.segments import copied


def test_what_was_written_is_read_by_another_process(place):
    trainer = place.trainer()
    trainer.save(1)
    trainer.save(12, reward=0.5)
    assert [(entry.step, entry.reward) for entry in Archive(place.url).entries()] == [(1, None), (12, 0.5)]
    assert_is(place.snapshot(12), 12)
    assert_is(place.snapshot(1), 1)


def test_tensors_spread_over_segments_of_a_bounded_size(place, monkeypatch):
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    many = {f"layer.{i}": torch.full((20,), float(i)) for i in range(9)}
    snapshot = place.trainer().save(3, groups={"model": many.items()})
    assert len(snapshot.manifest.groups["model"]) == 5  # 80 bytes each: two fill one
    restored = place.snapshot(3)
    assert all(torch.equal(restored.tensor("model", name), value) for name, value in many.items())


def test_a_large_segment_survives_the_multipart_upload(place):
    large = torch.randn(12_000_000)  # 48 MB: goes up in parts
    place.trainer().save(1, groups={"model": {"large": large}.items()})
    assert torch.equal(place.snapshot(1).tensor("model", "large"), large)


def test_what_did_not_change_is_stored_once(place):
    trainer = place.trainer()
    first, second = trainer.save(1), trainer.save(2)
    assert first.manifest.groups["frozen"] == second.manifest.groups["frozen"]
    assert len(place.keys("segments")) == 6  # two models, one embedding, the first episode, two new ones


def test_ranks_share_the_work(monkeypatch):
    """Each copies its own segments, in the one order that all see."""
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    many = {f"layer.{i}": torch.full((20,), float(i)) for i in range(9)}
    groups = {"policy": many, "none": {}, "critic": many}

    def share(rank: int, ranks: int) -> list:
        return list(copied({name: group.items() for name, group in groups.items()}, rank, ranks))

    alone, shares = share(0, 1), [share(rank, 3) for rank in range(3)]
    together = sorted((row for mine in shares for row in mine), key=lambda row: row[0])
    assert [len(mine) for mine in shares] == [4, 3, 3]
    assert [(n, group, list(batch)) for n, group, batch in together] == [
        (n, group, list(batch)) for n, group, batch in alone
    ]


def test_a_group_that_ends_with_an_empty_tensor_keeps_the_next_one_apart(directory):
    directory.trainer().save(
        1, groups={"empty": {"none": torch.zeros(0)}.items(), "full": tensors(1).items()}
    )
    restored = directory.snapshot(1)
    assert restored.tensors("empty")["none"].shape == (0,)
    assert restored.tensors("full").keys() == tensors(1).keys()


def test_training_does_not_reach_what_was_copied(directory):
    weight = torch.ones(1000)
    trainer = directory.trainer()
    trainer.saver.begin(1, {}, {"model": {"weight": weight}.items()}, {})
    weight.zero_()
    trainer.saver.finish()
    assert torch.equal(directory.snapshot(1).tensor("model", "weight"), torch.ones(1000))


def test_files_are_made_while_training_goes_on(directory):
    trainer, training = directory.trainer(), threading.Event()

    def encode() -> bytes:
        assert training.wait(60)
        return b"an episode"

    trainer.saver.begin(1, {}, {}, {"episodes/1.parquet": encode})
    training.set()  # `begin` has not waited for it
    trainer.saver.finish()
    assert directory.snapshot(1).blob("episodes/1.parquet") == b"an episode"


@pytest.mark.parametrize("part", ["manifest", "segment"])
def test_damage_is_noticed(place, part):
    trainer = place.trainer()
    trainer.save(1)
    damaged = trainer.save(2)
    place.damage(damaged.entry.key if part == "manifest" else damaged.manifest.groups["model"][0].key)
    with pytest.raises(DamagedSnapshot, match="of step 2 is not what its hash says"):
        place.snapshot(2).tensors("model")
    assert_is(place.snapshot(1), 1)


def test_a_missing_segment_and_a_missing_manifest_are_damage_too(place):
    trainer = place.trainer()
    segment = trainer.save(2).manifest.groups["model"][0].key
    obstore.delete(place.raw, [segment, trainer.save(3).entry.key])
    with pytest.raises(DamagedSnapshot, match=r"segment [0-9a-f]{12} of step 2 is missing"):
        place.snapshot(2).tensors("model")
    with pytest.raises(DamagedSnapshot, match="the manifest of step 3 is missing"):
        place.snapshot(3)


def test_a_damaged_segment_is_not_counted_as_stored(place):
    """A run that fell back sends again what it cannot have read."""
    damaged = place.trainer().save(2).manifest.groups["frozen"][0].key
    place.damage(damaged)
    place.trainer().save(3)
    assert_is(place.snapshot(3), 3)
    assert torch.equal(place.snapshot(3).tensor("frozen", "embedding"), torch.arange(12.0))


def test_of_what_is_larger_than_it_may_be_nothing_is_read(place, monkeypatch):
    """Writers of the store could fill the memory of whoever reads it, before the hash tells."""
    segment = place.trainer().save(2).manifest.groups["frozen"][0]
    obstore.put(place.raw, segment.key, bytes(segment.size + 1))
    may = f"has {segment.size + 1} bytes, and may have {segment.size}"
    with pytest.raises(DamagedSnapshot, match=f"segment .* of step 2 is not what its hash says: .* {may}"):
        place.snapshot(2).tensors("frozen")
    monkeypatch.setattr(store_module, "READ_BYTES", segment.size - 1)  # one that is read in parts
    with pytest.raises(TooLarge, match=may):
        Store(place.url).get(segment.key, segment.size)
    monkeypatch.setattr(store_module, "JSON_BYTES", 100)
    with pytest.raises(StoreError, match=rf"LATEST in {place.url} has \d+ bytes, and may have 100"):
        place.steps()


@pytest.mark.parametrize(
    "harm", [lambda data: data[:-9], lambda data: data.replace(b"2", b"3"), lambda _: b""]
)
def test_a_damaged_root_is_made_again_from_the_manifests(place, caplog, harm):
    trainer = place.trainer()
    trainer.save(1)
    trainer.save(2)
    obstore.put(place.raw, "LATEST", harm(bytes(obstore.get(place.raw, "LATEST").bytes())))
    with caplog.at_level(logging.ERROR):
        assert place.steps() == [1, 2]
    assert "DAMAGED STORE, using the manifests that are readable: LATEST" in caplog.text
    again = place.trainer()
    assert again.committer.epoch == 2
    again.save(3)
    assert place.steps() == [1, 2, 3]
    assert_is(place.snapshot(2), 2)


def test_a_step_that_is_saved_again_replaces_it_and_what_came_after(place):
    trainer = place.trainer()
    for step in (1, 2, 3):
        trainer.save(step)
    again = place.trainer()
    again.save(2)
    assert place.steps() == [1, 2]
    assert len(place.keys("cuts")) == 2
    assert_is(place.snapshot(2), 2)


def test_retention_deletes_only_what_nobody_refers_to(place):
    trainer = place.trainer(Retention(last=1, every=4, best=1))
    for step in range(1, 8):
        trainer.save(step, reward={2: 0.9, 3: 0.5}.get(step))
    assert place.steps() == [2, 4, 7]
    for step in place.steps():
        assert_is(place.snapshot(step), step)
    assert len(place.keys("segments")) == 3 + 1 + 1 + 3
    assert len(place.keys("cuts")) == 3


def test_an_outage_is_not_taken_for_damage(place, monkeypatch):
    """A run must not fall back to an older snapshot, or to the start, because the network failed for a moment."""
    if place.url.startswith("file"):
        return  # a directory has no outage
    place.trainer().save(1)
    archive = Archive(place.url, StoreOptions(FIRST_PATIENCE))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(archive.store, "_store", connect(place.url, FIRST_PATIENCE))
    with pytest.raises(StoreError, match=rf"the store {place.url} fails: .*127\.0\.0\.1:1"):
        archive.entries()


def test_names_that_no_segment_holds_are_damage(directory):
    directory.trainer().save(1)
    snapshot = directory.snapshot(1)
    for group, name in (("model", "bias"), ("critic", "weight")):
        with pytest.raises(
            DamagedSnapshot, match=f"the snapshot of step 1 has no tensor '{name}' in '{group}'"
        ):
            snapshot.tensor(group, name)
    with pytest.raises(DamagedSnapshot, match="has no 'episodes/9'"):
        snapshot.blob("episodes/9")
    assert snapshot.blobs == ("episodes/1.parquet",)
    assert ALONE.first
    assert tensors(1).keys() == snapshot.tensors("model").keys()
