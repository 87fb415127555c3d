"""This process as the only rank, with gloo, as long as tests of this folder run."""

from pathlib import Path

import pytest
import torch
from torch import distributed


@pytest.fixture(autouse=True)
def rank(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")  # DeepSpeed asks for it
    torch.set_num_threads(1)
    if not distributed.is_initialized():
        where = f"file://{tmp_path_factory.mktemp('rank')}/meeting"
        distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """One group for all files, since DeepSpeed keeps the first one, and none for the tests that come after."""
    last = nextitem is None or Path(__file__).parent not in nextitem.path.parents
    if last and distributed.is_initialized():
        distributed.destroy_process_group()
