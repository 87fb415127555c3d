"""Files that a run writes for its readers are in each snapshot, and come back where the work directory is a new one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.stores import fill_store
from tests.unit.store.conftest import ALONE

from rlhf_api.sections.checkpoint import Checkpoint, Origin
from rlhf_store import manifest
from rlhf_store.archive import Archive
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.training.checkpoints import Checkpoints

FILES = {
    "samples.jsonl": b'{"step": 3}\n',
    "metrics.jsonl": b'{"step": 3, "loss": 0.5}\n',
    "evaluation.jsonl": b'{"step": 3, "mean": 1.0}\n',
    "timeline.jsonl": b'{"step": 3, "seconds": 2.0, "spans": []}\n',
    "prediction.json": b'{"step": 2.0, "phases": {}, "by": "runs/a"}\n',
}


def checkpoints(workdir: Path, saver: Any, **settings: Any) -> Checkpoints:
    nothing = lambda *_, **__: None  # noqa: E731
    task: Any = SimpleNamespace(
        restore=nothing, reorder=nothing, groups=dict, state=dict, blobs=dict, updates=dict
    )
    monitor: Any = SimpleNamespace(restore=nothing, state=dict, rollbacks=0, good=True)
    spec = SimpleNamespace(checkpoint=Checkpoint(**settings))
    ctx: Any = SimpleNamespace(ranks=ALONE, report=nothing, data={}, workdir=workdir, spec=spec, job="job")
    return Checkpoints(ctx, task, monitor, saver, {})


def test_a_snapshot_has_the_files_of_the_work_directory(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    archive = Archive((tmp_path / "store").as_uri())
    committer = Committer.take_over(archive, Retention())
    with Saver(ALONE, archive, committer, committed=lambda _: None) as saver:
        checkpoints(tmp_path, saver).save(3, None)
    (entry,) = archive.entries()
    snapshot = archive.open(entry)
    assert {name: snapshot.blob(name) for name in snapshot.blobs} == FILES


def test_of_a_file_that_grows_the_part_that_is_new_alone_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "PART_BYTES", 100)
    archive = Archive((tmp_path / "store").as_uri())
    committer = Committer.take_over(archive, Retention(last=20))
    lines = [b'{"step": %d, "loss": 0.5}\n' % step for step in range(1, 21)]
    lines[9] = b'{"step": 10, "note": "%s"}\n' % (b"x" * 300)
    written = tmp_path / "metrics.jsonl"
    with Saver(ALONE, archive, committer, committed=lambda _: None) as saver:
        for step in range(1, 21):
            written.write_bytes(b"".join(lines[:step]))
            checkpoints(tmp_path, saver).save(step, None)
    snapshots = [archive.open(entry) for entry in archive.entries()]
    for snapshot in snapshots:
        assert (snapshot.blobs, snapshot.blob("metrics.jsonl")) == (
            ("metrics.jsonl",),
            b"".join(lines[: snapshot.step]),
        )
        snapshot.download("metrics.jsonl", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == b"".join(lines[: snapshot.step])
    newest, before = ({part.digest for part in each.parts("metrics.jsonl")} for each in snapshots[:-3:-1])
    assert len(newest) == 8
    assert len(newest - before) == 1


def restored(tmp_path: Path, **settings: Any) -> dict[str, bytes]:
    archive = Archive(fill_store(tmp_path / "store", FILES))
    workdir = tmp_path / "new"
    workdir.mkdir(exist_ok=True)
    saver = SimpleNamespace(archive=archive, knows=lambda _: None)
    checkpoints(workdir, saver, **settings).restore(archive.entries())
    return {file.name: file.read_bytes() for file in workdir.iterdir()}


def test_a_new_work_directory_gets_them_back(tmp_path):
    assert restored(tmp_path) == FILES


def test_files_that_are_there_stay(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").write_bytes(b"mine")
    assert restored(tmp_path) == {**FILES, "metrics.jsonl": b"mine"}


@pytest.mark.parametrize(("step", "names"), [(3, {"samples.jsonl"}), (2, set(FILES))])
def test_figures_of_the_run_that_it_starts_from_are_not_its_own(tmp_path, step, names):
    origin = Origin(store="file:///other", step=step)
    assert restored(tmp_path, startFrom=origin).keys() == names


def test_a_damaged_file_is_left_out(tmp_path):
    fill_store(tmp_path / "store", FILES)
    archive = Archive((tmp_path / "store").as_uri())
    segment = archive.open(archive.entries()[-1]).manifest.blobs["metrics.jsonl"]
    (tmp_path / "store" / segment.key).write_bytes(b"x" * segment.size)
    workdir = tmp_path / "new"
    workdir.mkdir()
    saver: Any = SimpleNamespace(archive=archive, knows=lambda _: None)
    checkpoints(workdir, saver).restore(archive.entries())
    assert {file.name for file in workdir.iterdir()} == FILES.keys() - {"metrics.jsonl"}
