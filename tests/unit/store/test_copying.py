"""A run that begins at another one's checkpoint: its own store gets a copy, and needs the other no more."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from obstore.store import from_url
from tests.unit.api.manifests import job
from tests.unit.store.conftest import ALONE, MANY, Place, assert_is

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.checkpoint import Checkpoint
from rlhf_store import copying
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_trainer.roles.trainer import take_over
from rlhf_trainer.training.checkpoints import Checkpoints


def config(own: str, origin: str, step: int = 3, *, resume: bool = False) -> RunConfig:
    checkpoint = f"spec.checkpoint={{store: '{own}', startFrom: {{store: '{origin}', step: {step}}}}}"
    spec = job("spec.steps=9", checkpoint).spec
    return RunConfig(job="clone", spec=spec, workdir="/tmp", resume=resume)


def begin(own: str, origin: str, *, resume: bool = False) -> Committer:
    return take_over(Archive(own), config(own, origin, resume=resume))


def test_a_run_begins_with_a_copy_and_goes_on_from_its_own(place: Place, tmp_path):
    trainer = place.trainer()
    trainer.save(3, reward=0.25)
    trainer.save(7)
    own = f"file://{tmp_path / 'own'}"
    begin(own, place.url)
    (entry,) = Archive(own).entries()
    assert (entry.step, entry.reward, entry.epoch) == (3, 0.25, 1)
    for key in place.keys(""):
        obstore.delete(place.raw, key)
    assert_is(Place(own, from_url(own)).snapshot(3), 3)
    # The next start of this run has its own, and does not ask for the other's.
    assert [entry.step for entry in begin(own, place.url, resume=True).cuts] == [3]


def reshuffled(committer: Committer, own: str) -> int:
    """Number of times that a start reshuffles the data that its snapshot has left."""
    times = list[int]()
    task = SimpleNamespace(restore=lambda _: None, reorder=times.append)
    monitor = SimpleNamespace(restore=lambda _: None, rollbacks=committer.rollbacks)
    saver = SimpleNamespace(archive=Archive(own), knows=lambda _: None)
    spec = SimpleNamespace(checkpoint=Checkpoint())
    ctx = SimpleNamespace(
        ranks=ALONE, report=lambda **_: None, data={}, workdir=Path("no-directory"), spec=spec
    )
    parts: Any = (ctx, task, monitor, saver, {})
    Checkpoints(*parts).restore(committer.cuts)
    (number,) = times
    return number


@pytest.mark.parametrize("good", [True, False])
def test_each_rollback_of_a_copy_brings_another_order_of_the_data(directory: Place, tmp_path, good: bool):
    """The other run's rollbacks are part of the copied order already, and are not counted again. The copy is where the
    run starts, whatever the other run's rules said of it."""
    trainer = directory.trainer()
    trainer.saver.roll_back()
    trainer.saver.roll_back()
    trainer.save(3, good=good)
    own = f"file://{tmp_path / 'own'}"
    committer = begin(own, directory.url)
    assert (committer.rollbacks, reshuffled(committer, own)) == (0, 0)
    for rollbacks in (1, 2):
        committer.roll_back()
        committer = begin(own, directory.url, resume=True)
        assert (committer.rollbacks, reshuffled(committer, own)) == (rollbacks, rollbacks)
    committer.commit(4, {}, {}, {})
    committer = begin(own, directory.url, resume=True)
    assert reshuffled(committer, own) == 0, "what it saved has that order"


def test_cut_short_it_leaves_no_checkpoint_and_is_begun_anew(place: Place, tmp_path):
    place.trainer().save(3)
    own = f"file://{tmp_path / 'own'}"

    def crash(point: str) -> None:
        raise RuntimeError(point)

    dying = Committer.take_over(Archive(own), MANY, crash)
    with pytest.raises(RuntimeError, match="manifest"):
        copying.copy(copying.find(place.url, 3), Archive(own).store, dying)
    assert Archive(own).entries() == []
    assert Archive(own).garbage()
    begin(own, place.url, resume=True)
    assert_is(Place(own, from_url(own)).snapshot(3), 3)
    assert Archive(own).garbage() == []


def test_what_cannot_be_copied(place: Place, tmp_path):
    own, trainer = f"file://{tmp_path / 'own'}", place.trainer()
    for step in (3, 7):
        trainer.save(step)
    with pytest.raises(
        InvalidJob, match=r"startFrom\.step: .* no checkpoint of step 5; it has those of steps: 3, 7"
    ):
        take_over(Archive(own), config(own, place.url, 5))
    place.damage(trainer.told[0].manifest.groups["model"][0].key)
    with pytest.raises(
        InvalidJob, match=r"startFrom: segment .* is not what its hash says; take another step"
    ):
        begin(own, place.url)
    assert Archive(own).entries() == []
    missing = tmp_path / "missing"
    with pytest.raises(InvalidJob, match=r"startFrom\.store: there is no directory"):
        begin(own, missing.as_uri())
    assert not missing.exists()


def test_a_run_goes_on_from_what_its_own_attempt_left_and_no_other_does(place: Place):
    def start(run: str) -> Committer:
        spec = job("spec.steps=9", f"spec.checkpoint.store={place.url}").spec
        return take_over(Archive(place.url), RunConfig(job="mine", spec=spec, workdir="/tmp"), run)

    start("uid-1")
    place.trainer().save(3)  # of another run, or of a release that wrote no identity
    for run in ("uid-1", ""):
        with pytest.raises(InvalidJob, match=r"checkpoints of an earlier run, up to step 3"):
            start(run)
    start_over = Committer.take_over(Archive(place.url), MANY, run="uid-1")
    assert start_over.epoch == start("uid-1").epoch - 1, "nobody knew of the attempt that has left them"
    assert [cut.step for cut in start("uid-1").cuts] == [3]
    with pytest.raises(InvalidJob, match=r"checkpoints of an earlier run, up to step 3"):
        start("uid-2")
