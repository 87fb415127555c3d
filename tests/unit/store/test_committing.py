"""Fencing of a store: one trainer at a time commits, and a crash between two writes leaves a store that opens."""

import threading

import obstore
import pytest
from obstore.exceptions import GenericError
from tests.unit.store.conftest import assert_is

from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.errors import Conflict, StoreError, UnusableStore
from rlhf_store.manifest import Entry
from rlhf_store.retention import Retention
from rlhf_store.store import Store


class Crash(BaseException):
    """Ends the running code as a kill does: past every `except Exception`."""


def crash_at(point: str):
    def reached(name: str) -> None:
        if name == point:
            raise Crash

    return reached


@pytest.mark.parametrize("point", ["segment:1", "manifest", "latest"])
def test_before_the_root_names_it_a_cut_is_not_there(place, point):
    place.trainer().save(1)
    before = place.keys("")
    with pytest.raises(Crash):
        place.trainer(reached=crash_at(point)).save(2)
    assert place.steps() == [1]
    assert_is(place.snapshot(1), 1)
    again = place.trainer()
    assert place.keys("") == before, "what the crash left is collected"
    again.save(2)
    assert_is(place.snapshot(2), 2)


def test_a_crash_before_old_cuts_are_deleted_leaves_garbage_alone(place):
    one = Retention(last=1)
    place.trainer(one).save(1)
    with pytest.raises(Crash):
        place.trainer(one, crash_at("committed")).save(2)
    assert place.steps() == [2]
    assert_is(place.snapshot(2), 2)
    garbage = Archive(place.url).garbage()
    assert len(garbage) == 3  # a manifest, a model and an episode
    place.trainer(one)
    assert Archive(place.url).garbage() == []
    assert_is(place.snapshot(2), 2)


def test_who_was_taken_over_cannot_commit(place):
    zombie = place.trainer()
    zombie.save(1)
    newer = place.trainer()
    with pytest.raises(UnusableStore, match=r"another trainer has taken over .*own"):
        zombie.save(9)
    newer.save(2)
    with pytest.raises(UnusableStore):
        zombie.save(10)
    assert place.steps() == [1, 2]
    assert_is(place.snapshot(2), 2)
    assert (zombie.committer.epoch, newer.committer.epoch) == (1, 2)


def test_who_was_taken_over_is_told_by_whom(place):
    def leads(run: str) -> Committer:
        return Committer.take_over(Archive(place.url), Retention(), run=run)

    def refusal_after(by: str) -> str:
        earlier = leads("uid-1")
        leads(by)
        with pytest.raises(UnusableStore) as caught:
            earlier.commit(1, {}, {}, {})
        return str(caught.value)

    assert (
        refusal_after("uid-1")
        == f"a later trainer of this run has taken over {place.url} and goes on, so this one ends"
    )
    assert refusal_after("uid-2").startswith(
        f"another run, uid-2, has taken over {place.url}, and this one may not write"
    )
    assert refusal_after("uid-2").endswith("each run needs a store of its own")
    assert refusal_after("").startswith(
        f"another trainer has taken over {place.url}, and this one may not write"
    )


def test_a_root_that_somebody_deletes_is_told_so_and_the_next_trainer_finds_what_is_left(place):
    trainer = place.trainer()
    trainer.save(1)
    obstore.delete(place.raw, "LATEST")
    with pytest.raises(StoreError, match=r"LATEST has been deleted from .*what is left there"):
        trainer.save(2)
    again = place.trainer()
    assert 1 in place.steps()
    again.save(3)
    assert_is(place.snapshot(1), 1)
    assert_is(place.snapshot(3), 3)


def test_of_two_that_start_at_once_one_leads(place):
    """Both may take over, but only the later one can commit."""
    started = []

    def start() -> None:
        started.append(Committer.take_over(Archive(place.url), Retention()))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(committer.epoch for committer in started) == [1, 2, 3, 4]
    outcomes = []
    for committer in sorted(started, key=lambda c: c.epoch):
        try:
            committer.commit(1, {}, {}, {})
            outcomes.append("committed")
        except UnusableStore:
            outcomes.append("refused")
    assert outcomes == ["refused"] * 3 + ["committed"]


def test_an_answer_that_was_lost_is_no_conflict(place):
    """The client sends again what the store has done already."""
    store = Store(place.url)
    first = store.swap("LATEST", b"1", None)
    second = store.swap("LATEST", b"2", first)
    assert store.swap("LATEST", b"2", first).data == b"2"
    with pytest.raises(Conflict):
        store.swap("LATEST", b"3", first)
    with pytest.raises(Conflict):
        store.swap("LATEST", b"3", None)
    store.swap("LATEST", b"3", second)
    store.put_new("snapshot", b"x")
    store.put_new("snapshot", b"x")
    with pytest.raises(Conflict):
        store.put_new("snapshot", b"y")


def test_conditional_writes_are_found_out(place):
    store = Store(place.url)
    store.check_writable()
    assert store.conditional
    assert place.keys("") == set(), "a check leaves nothing behind"


def test_a_store_without_them_still_compares(place):
    """The documented fallback: it notices everybody but those who write in the same milliseconds."""
    store = Store(place.url)
    store.conditional = False
    first = store.swap("LATEST", b"1", None)
    store.swap("LATEST", b"2", first)
    assert store.swap("LATEST", b"2", first).data == b"2", "the reply to our own was lost"
    with pytest.raises(Conflict):
        store.swap("LATEST", b"3", first)


@pytest.mark.parametrize(
    ("retention", "retained"),
    [
        (Retention(last=1), [8]),
        (Retention(last=3), [6, 7, 8]),
        (Retention(last=20), [1, 2, 3, 4, 5, 6, 7, 8]),
        (Retention(last=1, every=3), [3, 6, 8]),
        (Retention(last=1, best=2), [2, 5, 8]),
        (Retention(last=2, every=4, best=1), [4, 5, 7, 8]),
        (Retention(last=0), [8]),
    ],
)
def test_retention(retention, retained):
    rewards = {2: 0.7, 3: 0.1, 5: 0.9, 6: -1.0}
    snapshots = [
        Entry(step=step, epoch=1, digest=f"{step:064x}", time="", reward=rewards.get(step))
        for step in range(1, 9)
    ]
    assert [snapshot.step for snapshot in retention.keep(snapshots)] == retained
    assert retention.keep([]) == ()


@pytest.mark.parametrize(
    ("bad", "retained"), [({8}, [7, 8]), ({4, 5, 6, 7, 8}, [3, 7, 8]), (set(range(9)), [7, 8])]
)
def test_the_newest_good_one_is_never_rotated_away(bad, retained):
    snapshots = [
        Entry(step=step, epoch=1, digest=f"{step:064x}", time="", good=step not in bad)
        for step in range(1, 9)
    ]
    assert [snapshot.step for snapshot in Retention(last=2).keep(snapshots)] == retained


def test_a_rollback_puts_away_what_came_after_the_last_good_cut_and_is_counted(place):
    trainer = place.trainer()
    assert trainer.committer.roll_back() == 0, "none is good: to the start"
    for step, good in ((1, True), (2, True), (3, False), (4, False)):
        trainer.save(step, good=good)
    assert trainer.saver.roll_back() == 2
    again = place.trainer()
    assert [(cut.step, cut.good) for cut in again.committer.cuts] == [(1, True), (2, True)]
    assert again.committer.rollbacks == 2
    assert Archive(place.url).garbage() == []
    assert Committer.take_over(Archive(place.url), Retention(), resume=False).rollbacks == 0


def test_where_the_root_is_lost_a_bad_cut_is_still_one_and_the_best_is_kept(place):
    trainer = place.trainer()
    trainer.save(1, reward=0.5)
    trainer.save(2, good=False)
    place.damage("LATEST")
    cuts = [(cut.step, cut.reward, cut.good) for cut in Archive(place.url).entries()]
    assert cuts == [(1, 0.5, True), (2, None, False)]


def test_where_the_root_is_lost_rollbacks_still_count(place):
    place.trainer().saver.roll_back()
    place.trainer().save(1)
    place.damage("LATEST")
    assert place.trainer().committer.rollbacks == 1


def test_a_directory_needs_no_hard_links(directory, monkeypatch):
    """SMB (Azure Files) and FUSE mounts of buckets have none."""
    put = obstore.put

    def without_links(*arguments, mode="overwrite", **options):
        if mode == "create":  # which links the written file to its name
            raise GenericError("Generic LocalFileSystem error: Operation not permitted (os error 1)")
        return put(*arguments, mode=mode, **options)

    monkeypatch.setattr(obstore, "put", without_links)
    trainer = directory.trainer()
    trainer.archive.store.check_writable()
    assert trainer.archive.store.conditional
    trainer.save(1)
    with pytest.raises(Conflict):
        trainer.archive.store.put_new("LATEST", b"another")
    assert directory.steps() == [1]
