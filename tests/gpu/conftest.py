"""Tests of what only a GPU runs: models in this process as a job's only rank, and meanwhile whole jobs beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed
from torch._C._distributed_c10d import HashStore

from .jobs import Jobs
from .reference import Cpu

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.skip(reason="needs a GPU (make gpu)"))
    items.sort(key=uses_jobs)  # last: they wait for what runs meanwhile


def uses_jobs(item: pytest.Item) -> bool:
    return "jobs" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def jobs(tmp_path_factory) -> Iterator[Jobs]:
    running = Jobs(tmp_path_factory.mktemp("jobs"))
    yield running
    running.close()


@pytest.fixture(scope="session", autouse=True)
def jobs_run_meanwhile(request: pytest.FixtureRequest) -> None:
    """Starts the jobs with the first test, where one of them is asked for."""
    if torch.cuda.is_available() and any(map(uses_jobs, request.session.items)):
        request.getfixturevalue("jobs")


@pytest.fixture(scope="session")
def cpu() -> Iterator[Cpu]:
    process = Cpu()
    yield process
    process.close()


@pytest.fixture(scope="session")
def one_rank() -> Iterator[None]:
    """This process as torchrun starts a job's only rank, on the first GPU."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
            environment.setenv(name, value)
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        yield
        distributed.destroy_process_group()
