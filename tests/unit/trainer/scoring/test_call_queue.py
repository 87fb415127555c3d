"""Calls of a reward for samples of several messages: how many at once, in which parts, and for how long."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from rlhf_trainer.scoring import call_queue
from rlhf_trainer.scoring.call_queue import MOST_PER_CALL, CallQueue
from rlhf_trainer.scoring.samples import Failure, Result, Sample, even_calls

LONG = 120.0


class Judge:
    """Holds each call until its responses are let go; scores a response with the number in it."""

    def __init__(self, concurrency: int, *held: str) -> None:
        self.concurrency, self.calls = concurrency, list[list[str]]()
        self.now = self.most = 0
        self.let_go, self._held = asyncio.Event(), held

    def size(self, count: int) -> int:
        return even_calls(count, self.concurrency)

    async def score(self, samples: Sequence[Sample]) -> list[Result]:
        self.calls.append([sample.response for sample in samples])
        self.now += 1
        self.most = max(self.most, self.now)
        if not self._held or {*self._held} & {*self.calls[-1]}:
            await self.let_go.wait()
        self.now -= 1
        return [float(sample.response) for sample in samples]


def samples(*numbers: int) -> list[Sample]:
    return [Sample("", str(number), {}) for number in numbers]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_messages_share_the_calls_which_are_as_many_as_the_manifest_says():
    """Those that wait are split evenly over the calls, at most so many in one."""

    async def work() -> None:
        judge = Judge(4)
        queue = CallQueue(judge, retries=0, seconds=LONG)
        tasks = [asyncio.ensure_future(queue.score(samples(number))) for number in range(100)]
        await turns()
        assert judge.calls == [["0"], ["1"], ["2"], ["3"]], "each as it came"
        judge.let_go.set()
        assert [(await each)[0] for each in tasks] == [[float(number)] for number in range(100)]
        assert judge.most == 4
        assert [len(call) for call in judge.calls[4:]] == sorted(
            (len(call) for call in judge.calls[4:]), reverse=True
        )
        assert len(judge.calls[4]) == MOST_PER_CALL
        assert sorted(int(number) for call in judge.calls for number in call) == list(range(100))

    asyncio.run(work())


def test_time_in_the_queue_is_no_time_of_a_response(monkeypatch):
    """Slow responses before it do not cost it its score: its time begins with its own call."""

    async def work() -> None:
        clock = SimpleNamespace(now=0.0)
        monkeypatch.setattr(call_queue, "time", SimpleNamespace(monotonic=lambda: clock.now))
        judge = Judge(1, "0")
        queue = CallQueue(judge, retries=2, seconds=10.0)
        tasks = [asyncio.ensure_future(queue.score(samples(number))) for number in range(3)]
        await turns()
        clock.now = 1000.0
        judge.let_go.set()
        assert [(await each)[0] for each in tasks] == [[0.0], [1.0], [2.0]]

    asyncio.run(work())


def test_what_nobody_waits_for_any_more_is_not_begun():
    async def work() -> None:
        judge = Judge(1)
        queue = CallQueue(judge, retries=0, seconds=LONG)
        first, second, third = (asyncio.ensure_future(queue.score(samples(i))) for i in range(3))
        await turns()
        first.cancel()  # under way: it ends, and its worker lives on
        second.cancel()
        await turns()
        judge.let_go.set()
        assert (await third)[0] == [2.0]
        assert judge.calls == [["0"], ["2"]]

    asyncio.run(work())


def test_a_failure_waits_for_no_other_response_and_is_tried_before_fresh_ones(monkeypatch):
    monkeypatch.setattr(call_queue, "PAUSE_SECONDS", 0.0)

    class Once(Judge):
        async def score(self, samples: Sequence[Sample]) -> list[Result]:
            scores = await super().score(samples)
            first = self.calls.count(self.calls[-1]) == 1
            return [Failure("busy") if sample.response == "1" and first else score
                    for sample, score in zip(samples, scores, strict=True)]  # fmt: skip

    async def work() -> None:
        judge = Once(1)
        judge.let_go.set()
        queue = CallQueue(judge, retries=1, seconds=LONG)
        tasks = [asyncio.ensure_future(queue.score(samples(number))) for number in range(1, 4)]
        assert [(await each)[0] for each in tasks] == [[1.0], [2.0], [3.0]]
        assert judge.calls[0] == ["1"]
        assert sorted(number for call in judge.calls[1:] for number in call) == ["1", "2", "3"]

    asyncio.run(work())


@pytest.mark.parametrize("error", [KeyError("of the function"), ValueError("of the function")])
def test_an_error_reaches_all_who_wait_for_the_call(error):
    class Broken(Judge):
        async def score(self, samples: Sequence[Sample]) -> list[Result]:  # noqa: ARG002
            raise error

    async def work() -> None:
        queue = CallQueue(Broken(1), retries=2, seconds=LONG)
        tasks = [asyncio.ensure_future(queue.score(samples(number))) for number in range(3)]
        assert await asyncio.gather(*tasks, return_exceptions=True) == [error] * 3

    asyncio.run(work())
