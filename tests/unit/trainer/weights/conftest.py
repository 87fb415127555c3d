from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.servers import vllm_server
from tests.support.servers.vllm_server import Server
from tests.support.tiny.models import tiny_biased_experts, tiny_experts, tiny_model
from tests.unit.trainer.weights.support import TOKEN, load

from rlhf_trainer.engines.vllm.serve.routed import WORKER
from rlhf_trainer.transport.http import HttpClient
from rlhf_trainer.weights.broadcaster import Broadcaster

SPOILABLE = ("--worker-extension-cls", "tests.unit.trainer.weights.sabotage.Sabotage")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Holds models `tied-<seed>`, `untied-<seed>`, `experts-<seed>` and `biased-<seed>`, and the servers' logs."""
    folder = tmp_path_factory.mktemp("weights")
    for seed in range(4):
        tiny_model(folder / f"tied-{seed}", tie=True, seed=seed)
        tiny_model(folder / f"untied-{seed}", tie=False, seed=seed)
        tiny_experts(folder / f"experts-{seed}", seed=seed)
        tiny_biased_experts(folder / f"biased-{seed}", seed=seed)
    return folder


@pytest.fixture(scope="session")
def models(folder):
    """`models("tied", 1)`"""
    return lambda kind, seed: load(folder / f"{kind}-{seed}")


@pytest.fixture(scope="session")
def http() -> Iterator[HttpClient]:
    with HttpClient(TOKEN) as http:
        yield http


@pytest.fixture(scope="session")
def starting_tied(folder) -> Iterator[Server]:
    server = vllm_server.launch(folder / "tied-0", folder / "tied.log", token=TOKEN, arguments=SPOILABLE)
    yield server
    server.stop()


def serving(folder: Path, kind: str, *arguments: str) -> Iterator[Server]:
    """A server of `<kind>-0`, ended in the end."""
    server = vllm_server.launch(
        folder / f"{kind}-0", folder / f"{kind}.log", token=TOKEN, arguments=arguments
    )
    try:
        yield server.wait_ready()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def untied(folder, starting_tied) -> Iterator[Server]:  # noqa: ARG001  they start side by side
    yield from serving(folder, "untied", *SPOILABLE)


@pytest.fixture(scope="session")
def experts(folder) -> Iterator[Server]:
    """Returns the experts that it chose."""
    routed = ("--enable-return-routed-experts", "--worker-cls", WORKER)
    yield from serving(folder, "experts", *SPOILABLE, *routed)


@pytest.fixture(scope="module")
def biased(folder) -> Iterator[Server]:
    yield from serving(folder, "biased")


@pytest.fixture(scope="session")
def tied(starting_tied) -> Server:
    """Serves `tied-0` at first."""
    return starting_tied.wait_ready()


@pytest.fixture
def make_sync(http):
    made = []

    def make(http: HttpClient = http, **options) -> Broadcaster:
        settings = {
            "host": "127.0.0.1",
            "timeout_s": 120.0,  # which nothing is to wait for, on a busy machine either
            "bucket_bytes": 1 << 16,
            "device": torch.device("cpu"),
        }
        made.append(Broadcaster(http, **(settings | options)))
        return made[-1]

    yield make
    for sync in made:
        sync.close()
