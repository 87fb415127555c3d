"""Viewers of a cluster's page are known by their tokens, and each has a limit of requests at once."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rlhf_operator.page.cluster import viewers
from rlhf_operator.page.cluster.viewers import MOST_OF_ONE, MOST_REQUESTS, Viewers, read_token
from rlhf_operator.page.refusal import Refusal


class Closable:
    """In place of a client, which is not asked."""

    def __init__(self, token: str) -> None:
        self.token, self.is_closed = token, False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def clients() -> list[Any]:
    return []


@pytest.fixture
def everyone(clients: list[Any]) -> Viewers:
    def connect(token: str) -> Any:
        clients.append(Closable(token))
        return clients[-1]

    return Viewers(connect, ())


async def refused(everyone: Viewers, token: str) -> int:
    try:
        async with everyone.entered(f"Bearer {token}"):
            return 200
    except Refusal as error:
        return error.status


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        "Bearer a b",
        "Bearer a\r\nX: y",
        "Bearer \u00e4",
        "Bearer " + "x" * 8001,
    ],
)
def test_what_is_no_token_is_refused_before_anybody_is_asked(header):
    with pytest.raises(Refusal) as caught:
        read_token(header)
    assert caught.value.status == 401


def test_requests_of_one_viewer_are_bounded(everyone):
    async def act() -> list[int]:
        async with AsyncExitStack() as under_way:
            for _ in range(MOST_OF_ONE):
                await under_way.enter_async_context(everyone.entered("Bearer alice"))
            during = [await refused(everyone, "alice"), await refused(everyone, "bob")]
        return [*during, await refused(everyone, "alice")]

    assert asyncio.run(act()) == [429, 200, 200]


def test_requests_of_all_are_bounded(everyone):
    async def act() -> list[int]:
        async with AsyncExitStack() as under_way:
            for number in range(MOST_REQUESTS):
                await under_way.enter_async_context(everyone.entered(f"Bearer viewer{number}"))
            during = await refused(everyone, "late")
        return [during, await refused(everyone, "late")]

    assert asyncio.run(act()) == [503, 200]


def test_a_viewer_who_has_left_is_forgotten(everyone, clients, monkeypatch):
    async def act() -> None:
        await refused(everyone, "alice")
        monkeypatch.setattr(viewers, "UNUSED_SECONDS", -1.0)
        await refused(everyone, "bob")

    asyncio.run(act())
    assert [(client.token, client.is_closed) for client in clients] == [("alice", True), ("bob", False)]


def test_the_same_token_is_the_same_viewer(everyone, clients):
    async def act() -> None:
        for token in ("alice", "bob", "alice"):
            await refused(everyone, token)

    asyncio.run(act())
    assert [client.token for client in clients] == ["alice", "bob"]
