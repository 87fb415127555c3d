"""The middleware alone; test_sync.py has a real server."""

import asyncio

import pytest

from rlhf_trainer.engines.vllm.front.fence import Fence
from rlhf_trainer.transport.http import DEPOSED, EPOCH_HEADER


async def application(_scope, _receive, send) -> None:
    await send({"status": 200})


def knock(fence: Fence, epoch: bytes | None, path: str = "/commit") -> int:
    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [] if epoch is None else [(EPOCH_HEADER.encode(), epoch)]
    asyncio.run(fence({"type": "http", "path": path, "headers": headers}, None, send))
    return sent[0]["status"]


def test_the_latest_trainer_passes_and_earlier_ones_do_not():
    fence = Fence(application)
    statuses = [knock(fence, epoch) for epoch in (b"2", b"2", b"10", b"2", b"9", b"10", b"11")]
    assert statuses == [200, 200, 200, DEPOSED, DEPOSED, 200, 200]


@pytest.mark.parametrize("epoch", [None, b"", b"-1", b"x", b"1.5"])
def test_who_names_no_epoch_is_no_trainer(epoch):
    fence = Fence(application)
    assert [knock(fence, sent_epoch) for sent_epoch in (b"2", epoch, b"2")] == [200, 200, 200]


def test_a_path_that_needs_no_token_tells_of_no_trainer():
    """Otherwise anybody could announce a later epoch and lock the trainer out."""
    fence = Fence(application)
    assert [knock(fence, b"9", "/health"), knock(fence, b"1"), knock(fence, b"0", "/health")] == [200] * 3
