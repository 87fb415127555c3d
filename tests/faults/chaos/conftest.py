"""A small PPO job whose trainer may be killed at any moment, and the servers that it asks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.forked.roles import Job
from tests.support.servers.seaweed import Seaweed
from tests.support.tiny.models import tiny_model

from rlhf_api.contract import timeline
from rlhf_store.archive import Archive
from rlhf_trainer.checkpoint.reading import Snapshot
from rlhf_trainer.export.saved_job import JOB
from rlhf_trainer.metrics.files import STEPS
from rlhf_trainer.ranks.ranks import Ranks

PROMPTS, PROMPTS_PER_STEP = 12, 4
ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Store:
    """One run's store, seen without whatever is between it and the trainer."""

    url: str
    overrides: dict[str, Any]

    def steps(self) -> list[int]:
        return [entry.step for entry in Archive(self.url).entries()]

    def newest(self) -> Snapshot:
        archive = Archive(self.url)
        return Snapshot.open(ALONE, archive, archive.entries()[-1])

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of the newest cut."""
        cut = self.newest()
        return {f"{group}/{name}": t for group in cut.groups for name, t in cut.tensors(group).items()}

    def damage(self, group: str, step: int | None = None) -> None:
        """One byte of the last segment of a group, in the newest cut or that of `step`, is another."""
        archive = Archive(self.url)
        entry = next(e for e in reversed(archive.entries()) if step in (None, e.step))
        key = archive.open(entry).manifest.groups[group][-1].key
        data = bytearray(archive.store.get(key))
        data[len(data) // 2] ^= 1
        archive.store.put(key, bytes(data))

    def assert_same(self, expected: "Store") -> None:
        """Weights, optimizers, random generators, episodes, position and ledger, bit for bit."""
        actual, reference = self.tensors(), expected.tensors()
        assert actual.keys() == reference.keys()
        assert [n for n, t in reference.items() if t.numpy().tobytes() != actual[n].numpy().tobytes()] == []
        mine, theirs = self.newest(), expected.newest()
        assert (mine.step, mine.state, mine.blobs) == (theirs.step, theirs.state, theirs.blobs)
        assert _job_elsewhere(mine) == _job_elsewhere(theirs)
        of_each = (JOB, STEPS, timeline.FILE)  # names its store; have seconds
        assert [n for n in mine.blobs if n not in of_each and mine.blob(n) != theirs.blob(n)] == []

    def assert_every_prompt_was_trained_once(self) -> None:
        """In every epoch; the ledger refuses a second time."""
        cut = self.newest()
        ledger, taken = cut.state["ledger"], cut.step * PROMPTS_PER_STEP
        assert (ledger["issued"], ledger["trained"], ledger["dropped"]) == ([[0, taken]], [[0, taken]], {})
        assert taken % PROMPTS == 0


def _job_elsewhere(cut: Snapshot) -> Any:
    """The job that the cut describes, without the store that it names."""
    job = json.loads(cut.blob(JOB))
    del job["manifest"]["spec"]["checkpoint"]
    return job


@dataclass(frozen=True)
class Stores:
    """Prefixes in a real S3 server that listens on `port`."""

    server: Seaweed

    @property
    def port(self) -> int:
        return int(self.server.endpoint.rsplit(":", 1)[1])

    def named(self, name: str, *, timeout: int = 60, **spec: Any) -> Store:
        url = self.server.url(name)
        checkpoint = {"store": url, "everySteps": 1, "timeoutSeconds": timeout}
        return Store(url, {**spec, "checkpoint": checkpoint})


@pytest.fixture(scope="module")
def stores(seaweed: Seaweed) -> Iterator[Stores]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweed.environment.items():
            patch.setenv(name, value)
        yield Stores(seaweed)


@pytest.fixture(scope="session")
def job(tmp_path_factory, seaweed: Seaweed) -> Iterator[Job]:
    folder = tmp_path_factory.mktemp("chaos")
    policy = tiny_model(folder / "policy", tie=False, seed=1)
    with Job(folder, spec(folder, policy), seaweed.environment).serving() as job:
        yield job


def spec(folder: Path, policy: Path) -> dict[str, Any]:
    rows = [json.dumps({"prompt": f"the {i}th thing is"}) for i in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("\n".join(rows))
    return {
        "algorithm": "ppo",
        "steps": 30,
        "seed": 5,
        "model": {"policy": str(policy), "dtype": "float32"},
        "data": {
            "train": [str(folder / "prompts.jsonl")],
            "maxPromptLength": 32,
            "promptsPerStep": PROMPTS_PER_STEP,
        },
        "sampling": {"maxNewTokens": 6},
        "ppo": {"minibatchSize": 2},
        "replay": {"maxReplayEpisode": 2, "samplesPerStep": 2},
        "optimizer": {"learningRate": 0.001},
        "generator": {"sharedWithTrainer": True},
        "reward": {"functions": [{"function": "tests.faults.matrix.reward:shorter"}]},
        "checkpoint": {"everySteps": 1},
    }
