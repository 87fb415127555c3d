"""This process as the only rank, with gloo, from now on: DeepSpeed keeps the first group that it meets. A rank computes
in one thread, which is not so in other tests: what torch rounds depends on it."""

from collections.abc import Iterator

import pytest
import torch
from torch import distributed


@pytest.fixture(autouse=True)
def rank(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOCAL_RANK", "0")  # DeepSpeed asks for it
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if not distributed.is_initialized():
        where = f"file://{tmp_path_factory.mktemp('rank')}/meeting"
        distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    torch.set_num_threads(threads)
