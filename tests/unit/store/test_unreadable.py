"""A store in which nothing can be read is not taken for a new one, which a trainer would begin by deleting it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import obstore
import pytest
from tests.unit.store.conftest import Place, assert_is, tensors

from rlhf_store.archive import Archive
from rlhf_store.errors import UnusableStore
from rlhf_store.manifest import digest_of
from rlhf_store.retention import Retention


@pytest.fixture
def written(place: Place) -> Place:
    trainer = place.trainer()
    for step in (1, 2):
        trainer.save(step)
    return place


def test_every_manifest_and_the_root_are_damaged(written: Place):
    for key in ("LATEST", *written.keys("cuts")):
        written.damage(key)
    before = written.keys("")
    with pytest.raises(
        UnusableStore, match=r"every checkpoint in .* is damaged .*begin a new run in another store"
    ):
        written.trainer()
    assert written.keys("") == before


def test_a_later_release_has_written_it(written: Place):
    content = json.loads(bytes(obstore.get(written.raw, "LATEST").bytes())) | {"format": 3}
    del content["sha256"]
    content["sha256"] = digest_of(json.dumps(content, sort_keys=True).encode())
    obstore.put(written.raw, "LATEST", json.dumps(content).encode())
    before = written.keys("")
    with pytest.raises(UnusableStore) as caught:
        written.trainer()
    assert str(caught.value) == (
        f"cannot use {written.url}: its LATEST has format 3, and this release reads format 2; go on with the release "
        "that wrote it, or name another store"
    )
    assert written.keys("") == before


@contextmanager
def unreadable(place: Place, *keys: str) -> Iterator[None]:
    """Reads of these objects are cut off, as on a mount that fails for a moment."""
    whole = {key: bytes(obstore.get(place.raw, key).bytes()) for key in keys}
    for key, data in whole.items():
        obstore.put(place.raw, key, data[: len(data) // 2])
    yield
    for key, data in whole.items():
        obstore.put(place.raw, key, data)


@pytest.mark.parametrize("root", [(), ("LATEST",)], ids=["manifest", "with LATEST"])
def test_what_a_trainer_cannot_read_as_it_starts_keeps_its_segments(written: Place, root, caplog):
    """It does not know which they are."""
    left = f"segments/{7:064x}"
    obstore.put(written.raw, left, b"of an interrupted upload")
    (second,) = (entry.key for entry in Archive(written.url).entries() if entry.step == 2)
    with unreadable(written, second):
        for key in root:
            written.damage(key)
        assert written.trainer().committer.cuts[-1].step == 2, "it stays listed"
    assert "nothing unreferenced is deleted while the manifest of a checkpoint cannot be read" in caplog.text
    assert_is(written.snapshot(2), 2)
    written.trainer()
    assert left not in written.keys("segments"), "what is nobody's goes once all can be read"


def test_what_it_could_not_read_for_a_moment_keeps_segments_that_it_shares(place: Place):
    def groups() -> dict:  # not trained yet, as a policy while its critic begins
        return {"model": tensors(2).items()}

    every = Retention(last=1, every=2)
    trainer = place.trainer(every)
    shared_key = trainer.save(2, groups=groups()).entry.key
    trainer.save(3, groups=groups())
    with unreadable(place, shared_key):
        again = place.trainer(every)
    again.save(4)
    assert place.steps() == [2, 4]
    assert_is(place.snapshot(2), 2)
