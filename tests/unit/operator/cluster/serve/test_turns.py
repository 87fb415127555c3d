"""Namespaces take turns, and who has gone away takes none."""

import asyncio

import pytest

from rlhf_operator.cluster.serve import turns
from rlhf_operator.cluster.serve.turns import TooManyWaiting, Turns


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Callers:
    """Callers that note when their turn comes, and keep it until they are let go."""

    def __init__(self) -> None:
        self.turns, self.had, self.go = Turns(), list[str](), asyncio.Event()

    async def call(self, name: str) -> None:
        async with self.turns.turn(name[0]):
            self.had.append(name)
            await self.go.wait()

    async def all(self, *names: str) -> dict[str, asyncio.Task[None]]:
        tasks = {name: asyncio.create_task(self.call(name)) for name in names}
        await settle()
        return tasks


def test_a_namespace_with_many_callers_gets_every_other_turn():
    async def story() -> None:
        callers = Callers()
        tasks = await callers.all("a1", "a2", "a3", "a4", "b1", "b2", "c1")
        assert callers.had == ["a1"]
        callers.go.set()
        await asyncio.gather(*tasks.values())
        assert callers.had == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]
        await callers.call("d1")

    asyncio.run(story())


def test_a_caller_that_is_cancelled_has_no_turn_and_keeps_nobody_waiting():
    async def story() -> None:
        callers = Callers()
        tasks = await callers.all("a1", "a2", "b1", "b2")
        for name in ("a2", "b1"):
            tasks[name].cancel()
        await settle()
        tasks["a1"].cancel()  # b2's turn comes, and it goes at that moment
        await asyncio.sleep(0)
        tasks["b2"].cancel()
        await settle()
        callers.go.set()
        await callers.call("c1")
        assert set(callers.had) <= {"a1", "b2", "c1"}

    asyncio.run(story())


def test_of_a_namespace_only_so_many_wait(monkeypatch):
    monkeypatch.setattr(turns, "MOST_WAITING", 2)

    async def story() -> None:
        callers = Callers()
        tasks = await callers.all("a1", "a2", "a3", "a4", "b1")
        with pytest.raises(TooManyWaiting):
            await tasks["a4"]
        callers.go.set()
        await asyncio.gather(*(task for name, task in tasks.items() if name != "a4"))

    asyncio.run(story())
