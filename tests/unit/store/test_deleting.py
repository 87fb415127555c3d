"""Garbage collection of a store: it deletes what no checkpoint refers to, leaves what others keep there, and passes
over what is gone."""

import os
import subprocess
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.support.kubernetes.kube import eventually
from tests.unit.store.conftest import Place

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.errors import UnusableStore
from rlhf_store.manifest import Entry, Manifest, Segment
from rlhf_store.retention import Retention
from rlhf_store.store import Store, StoreOptions

AT_ONCE = timedelta()
"""No second try."""


def test_what_is_gone_already_is_deleted(place: Place):
    store = Store(
        place.url, StoreOptions(AT_ONCE if place.url.startswith("file") else timedelta(seconds=120))
    )
    for key in ("a", "c"):
        store.put(key, b"1")
    store.delete(["a", "gone", "c"])
    store.delete(["a"])
    assert place.keys("") == set()


def test_an_object_that_is_missing_does_not_keep_the_others_from_being_deleted(directory: Place):
    """A directory refuses to delete a missing file: neither of the deletions after it was made."""
    archive = Archive(directory.url, StoreOptions(AT_ONCE))
    committer = Committer.take_over(archive, Retention(last=1))
    store = archive.store
    for step in (1, 2, 3):
        store.put(f"segments/{step:064x}", b"")
        committer.commit(step, {}, {}, {"blob": Segment(digest=f"{step:064x}", size=0)})
        if step == 1:
            store.delete([f"segments/{step:064x}"])
    assert len(directory.keys("segments")) == len(directory.keys("cuts")) == 1


WRITES = """
import sys
from rlhf_store.store import Store
while True:
    Store(sys.argv[1]).put("segments/" + "7" * 64, bytes(256 << 20))
"""


def test_what_a_killed_writer_has_left_of_a_file_is_deleted_once_nobody_can_still_write_it(directory: Place):
    """A listing does not have it."""
    folder = Path(unquote(urlsplit(directory.url).path))
    while not (leftovers := [*folder.rglob("*#1")]):  # it may just have written the whole of it
        writer = subprocess.Popen([sys.executable, "-c", WRITES, directory.url])
        eventually(lambda: any(folder.rglob("*#1")), "it has begun to write")
        writer.kill()
        writer.wait()
    (left,) = leftovers
    others = folder / "segments" / "talk #1"
    others.touch()
    directory.trainer()
    assert left.exists(), "its writer may be at work"
    for file in (left, others):
        os.utime(file, (0, 0))
    directory.trainer()
    assert (left.exists(), others.exists()) == (False, True)


def test_what_others_keep_below_the_same_names_stays(place: Place):
    """A run was given a place with data in it; an interrupted upload is still deleted."""
    others = {"segments/talk 1.wav", "segments/a/0001.json", "cuts/trailer.mp4"}
    store = place.trainer().archive.store
    for key in (*others, f"segments/{7:064x}", f"cuts/00000001.1.{7:064x}.json"):
        store.put(key, b"1")
    assert len(Archive(place.url).garbage()) == 1 + 1
    trainer = place.trainer()
    trainer.save(1)
    assert others < place.keys("")
    assert Archive(place.url).garbage() == []


def test_a_trainer_that_is_taken_over_while_it_starts_deletes_nothing_of_the_next_one(directory: Place):
    """The first trainer was paused between its listing and its take-over, as on a node that comes back."""
    archive = Archive(directory.url)
    manifests = archive.manifests

    def meanwhile(entries: Iterable[Entry]) -> dict[str, Manifest]:
        next_one = directory.trainer()
        next_one.archive.store.put(f"segments/{7:064x}", b"being uploaded")
        return manifests(entries)

    archive.manifests = meanwhile  # type: ignore[method-assign]
    fenced = Committer.take_over(archive, Retention())
    assert directory.keys("segments") == {f"segments/{7:064x}"}
    with pytest.raises(UnusableStore, match="another trainer has taken over"):
        fenced.commit(1, {}, {}, {})
