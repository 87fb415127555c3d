"""Rounds of items without servers: the member is a coroutine here, and the clock is the test's own."""

import asyncio

import pytest
from tests.support import virtual_time

from rlhf_api.roles import Role
from rlhf_api.run import Member
from rlhf_trainer.comms.assignments import Limits
from rlhf_trainer.comms.dispatch import Dispatch, Observer

MEMBER = Member(role=Role.GENERATOR, name="a", uid="a", address="http://127.0.0.1:1")


class Doors:
    """A client whose items, numbers, are done once their door is open."""

    def __init__(self, count: int) -> None:
        self.doors = [asyncio.Event() for _ in range(count)]
        self.asked, self.cancelled = list[int](), list[int]()

    async def ask(self, _member, item: int, _progress) -> int:
        self.asked.append(item)
        try:
            await self.doors[item].wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        return item

    async def listens(self, _member) -> bool:
        return True


def rounds(client: Doors) -> "Dispatch[int, int]":
    return Dispatch(
        range(len(client.doors)),
        [MEMBER],
        client,
        current=lambda: {MEMBER.uid: MEMBER},
        limits=Limits(concurrent=8, silence=1e6),
        describe=str,
        observer=Observer(),
    )


@pytest.mark.parametrize("turns", range(8))
def test_a_round_that_is_cancelled_just_as_a_result_comes_ends(turns):
    """`turns`: turns of the event loop between the result and the cancellation."""

    async def cancel() -> None:
        client = Doors(2)
        task = asyncio.ensure_future(rounds(client).run())
        while len(client.asked) < 2:
            await asyncio.sleep(0)
        client.doors[0].set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=30.0)
        assert task.cancelled()
        assert client.cancelled[-1:] == [1], "nobody works on the other one"

    virtual_time.run(virtual_time.Loop(), cancel(), 60.0)
