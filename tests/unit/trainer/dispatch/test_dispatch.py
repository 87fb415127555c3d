"""Rounds of items without servers: the member is a coroutine here, and the clock is the test's own."""

import asyncio
from typing import Any

import pytest
from tests.support.clocks import virtual_time

from rlhf_api.contract.run import Member
from rlhf_api.roles import Role
from rlhf_trainer.dispatch.assignments import Limits
from rlhf_trainer.dispatch.dispatch import Dispatch, Observer, Switches
from rlhf_trainer.dispatch.outcomes import Outcome

MEMBER, OTHER = (
    Member(role=Role.GENERATOR, name=name, uid=name, address="http://127.0.0.1:1") for name in "ab"
)


class Doors:
    """A client whose items, numbers, are done once their door is open."""

    def __init__(self, count: int) -> None:
        self.doors = [asyncio.Event() for _ in range(count)]
        self.asked, self.cancelled = list[int](), list[int]()
        self.gone: Member | None = None

    async def until_asked(self, count: int) -> None:
        while len(self.asked) < count:
            await asyncio.sleep(0)

    async def ask(self, _member, item: int, _progress) -> int:
        self.asked.append(item)
        try:
            await self.doors[item].wait()
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        return item

    async def listens(self, member) -> bool:
        return member != self.gone


def rounds(client: Doors, *members: Member, concurrent: int = 8, **more: Any) -> "Dispatch[int, int]":
    return Dispatch(
        range(len(client.doors)),
        members,
        client,
        current=lambda: {member.uid: member for member in members},
        limits=Limits(concurrent=concurrent, silence=1e6),
        describe=str,
        observer=Observer(),
        **more,
    )


@pytest.mark.parametrize("turns", range(8))
def test_a_round_that_is_cancelled_just_as_a_result_comes_ends(turns):
    """`turns`: turns of the event loop between the result and the cancellation."""

    async def cancel() -> None:
        client = Doors(2)
        task = asyncio.ensure_future(rounds(client, MEMBER).run())
        await client.until_asked(2)
        client.doors[0].set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=30.0)
        assert task.cancelled()
        assert client.cancelled[-1:] == [1], "nobody works on the other one"

    virtual_time.run(virtual_time.Loop(), cancel(), 60.0)


def test_what_a_lost_member_was_at_goes_before_what_nobody_has_begun():
    """The other member has finished its own item, and so has room, before the lost one's is taken back."""

    async def go_on() -> "Outcome[int, int]":
        client, switches = Doors(3), Switches(keep=True)
        first = asyncio.ensure_future(rounds(client, MEMBER, OTHER, concurrent=1, switches=switches).run())
        await client.until_asked(2)
        switches.closing = True
        switches.apply()
        under_way = (await first).under_way
        client.doors[1].set()
        await asyncio.wait([each.task for each in under_way if each.item == 1])
        second = asyncio.ensure_future(rounds(client, OTHER, concurrent=1, under_way=under_way).run())
        await client.until_asked(3)
        for door in client.doors:
            door.set()
        outcome = await second
        assert (client.asked, client.cancelled) == ([0, 1, 0, 2], [0])
        return outcome

    outcome = virtual_time.run(virtual_time.Loop(), go_on(), 60.0)
    assert (outcome.unanswered, outcome.requeued, list(outcome.failed)) == ([], [0], ["a"])


def test_items_of_a_lost_member_keep_their_order():
    """The trainer waits for the first ones."""

    async def go_on() -> list[int]:
        client = Doors(5)
        running = asyncio.ensure_future(rounds(client, MEMBER, OTHER, concurrent=2).run())
        await client.until_asked(4)
        assert client.asked == [0, 1, 2, 3], "each member gets every other one"
        client.gone = MEMBER
        while len(client.cancelled) < 2:
            await asyncio.sleep(0.1)
        for item in (1, 3, 0, 2, 4):
            client.doors[item].set()
            await asyncio.sleep(0.1)
        await running
        return client.asked[4:]

    assert virtual_time.run(virtual_time.Loop(), go_on(), 60.0) == [0, 2, 4]
