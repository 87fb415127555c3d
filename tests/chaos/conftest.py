"""A small PPO job whose trainer may be killed at any moment, and the servers that it asks."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.models import tiny_model
from tests.support.roles import Job
from tests.support.seaweed import Seaweed, running

from rlhf_store.archive import Archive
from rlhf_trainer.checkpoint.reading import Cut
from rlhf_trainer.ranks import Ranks

PROMPTS = 12
ALONE = Ranks(0, 1, torch.device("cpu"))


@dataclass(frozen=True)
class Store:
    """One run's store, seen without whatever is between it and the trainer."""

    url: str
    overrides: dict[str, Any]

    def steps(self) -> list[int]:
        return [entry.step for entry in Archive(self.url).entries()]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of the newest cut."""
        archive = Archive(self.url)
        cut = Cut.open(ALONE, archive, archive.entries()[-1])
        return {f"{group}/{name}": t for group in cut.groups for name, t in cut.tensors(group).items()}

    def assert_same(self, expected: "Store") -> None:
        """Bit for bit."""
        found, wanted = self.tensors(), expected.tensors()
        assert found.keys() == wanted.keys()
        assert [n for n, t in wanted.items() if t.numpy().tobytes() != found[n].numpy().tobytes()] == []


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
def seaweed(tmp_path_factory) -> Iterator[Seaweed]:
    with running(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="module")
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
        "data": {"train": [str(folder / "prompts.jsonl")], "maxPromptLength": 16, "promptsPerStep": 4},
        "sampling": {"maxNewTokens": 6},
        "ppo": {"minibatchSize": 2},
        "optimizer": {"learningRate": 0.001},
        "generator": {"sharedWithTrainer": True},
        "reward": {"functions": [{"function": "tests.chaos.conftest:reward"}]},
        "checkpoint": {"everySteps": 1},
    }


def reward(prompts: list[str], responses: list[str], rows: list[dict]) -> list[float]:  # noqa: ARG001
    """Shorter is better."""
    return [-len(response) / 10 for response in responses]
