"""The places where checkpoints are tried: a directory, and a real S3 server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import obstore
import pytest
import torch
from obstore.store import ObjectStore, from_url
from tests.support.servers.seaweed import Seaweed

from rlhf_store.archive import Archive
from rlhf_store.archive import Snapshot as Stored
from rlhf_store.committing import Committer
from rlhf_store.retention import Retention
from rlhf_trainer.checkpoint.reading import Snapshot
from rlhf_trainer.checkpoint.saver import Saver
from rlhf_trainer.ranks.ranks import Ranks

ALONE = Ranks(0, 1, torch.device("cpu"))
MANY = Retention(last=9)


def tensors(step: int) -> dict[str, torch.Tensor]:
    """Tensors of a step: some change from step to step, some never do, and some have odd dtypes."""
    generator = torch.Generator().manual_seed(step)
    return {
        "weight": torch.randn(30, 7, generator=generator),
        "half": torch.randn(5, generator=generator).bfloat16(),
        "scalar": torch.tensor(step),
    }


@dataclass
class Trainer:
    """One process that makes snapshots; a second one on the same store takes over from it."""

    archive: Archive
    committer: Committer
    saver: Saver
    told: list[Stored] = field(default_factory=list)

    def save(
        self, step: int, reward: float | None = None, groups: Mapping | None = None, *, good: bool = True
    ) -> Stored:
        """Returns when the snapshot is committed."""
        frozen = {"embedding": torch.arange(12.0)}
        every = {"model": tensors(step).items(), "frozen": frozen.items(), "none": {}.items()}
        blobs = {
            "episodes/1.parquet": lambda: b"the same for ever",
            f"episodes/{step}.parquet": lambda: b"new %d" % step,
        }
        self.saver.begin(step, {"position": step * 4}, groups or every, blobs, reward, good=good)
        self.saver.finish()
        return self.told[-1]


@dataclass(frozen=True)
class Place:
    """One run's store, and what lies in it as anyone else sees it."""

    url: str
    raw: ObjectStore

    def trainer(
        self, retention: Retention = MANY, reached: Callable[[str], None] = lambda _: None
    ) -> Trainer:
        archive, committed = Archive(self.url), list[Stored]()
        committer = Committer.take_over(archive, retention, reached)
        saver = Saver(ALONE, archive, committer, committed=committed.append, reached=reached)
        return Trainer(archive, committer, saver, committed)

    def keys(self, prefix: str) -> set[str]:
        return {meta["path"] for meta in obstore.list(self.raw, prefix).collect()} - {".lock"}

    def damage(self, key: str) -> None:
        """One byte in the middle is another."""
        data = bytearray(obstore.get(self.raw, key).bytes())
        data[len(data) // 2] ^= 1
        obstore.put(self.raw, key, bytes(data))

    def steps(self) -> list[int]:
        return [entry.step for entry in Archive(self.url).entries()]

    def snapshot(self, step: int) -> Snapshot:
        """As a trainer reads it."""
        archive = Archive(self.url)
        (entry,) = (entry for entry in archive.entries() if entry.step == step)
        return Snapshot.open(ALONE, archive, entry)


def assert_is(snapshot: Snapshot, step: int) -> None:
    """It holds what `Trainer.save` put into the snapshot of `step`."""
    assert (snapshot.step, snapshot.state) == (step, {"position": step * 4})
    restored = snapshot.tensors("model")
    assert restored.keys() == tensors(step).keys()
    for name, expected in tensors(step).items():
        assert restored[name].dtype == expected.dtype
        assert torch.equal(restored[name], expected)
    assert snapshot.tensors("none") == {}
    assert snapshot.blob(f"episodes/{step}.parquet") == b"new %d" % step


@pytest.fixture(params=["file", "s3"])
def place(request, tmp_path, monkeypatch) -> Place:
    if request.param == "file":
        return Place(url := f"file://{tmp_path / 'checkpoints'}", from_url(url, mkdir=True))
    server: Seaweed = request.getfixturevalue("seaweed")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    url = server.url(tmp_path.name)
    return Place(url, from_url(url, client_options={"allow_http": True}))


@pytest.fixture
def directory(tmp_path) -> Place:
    """For what is the same in every store."""
    return Place(url := f"file://{tmp_path / 'checkpoints'}", from_url(url, mkdir=True))
