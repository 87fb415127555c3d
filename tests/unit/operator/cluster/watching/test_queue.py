"""The queue of jobs: who comes next, and when."""

import asyncio
import random

import pytest

from rlhf_operator.cluster.watching.queue import Queue

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> Queue:
    """Without chance: the jitter takes nothing away."""
    return Queue(clock, jitter=lambda: 1.0)


def taken(queue: Queue) -> list:
    """Everything that can be taken now; each is done at once."""
    keys = []
    while (key := queue.take()) is not None:
        keys.append(key)
        queue.done(key)
    return keys


def test_what_happens_often_is_looked_at_once(queue):
    for _ in range(3):
        queue.add(A)
        queue.add(B)
    assert len(queue) == 2
    assert taken(queue) == [A, B]
    assert len(queue) == 0


def test_a_job_is_never_with_two_workers_and_nothing_is_missed(queue):
    queue.add(A)
    assert queue.take() == A
    queue.add(A)
    assert queue.take() is None
    queue.done(A)
    assert taken(queue) == [A]


def test_the_earliest_wish_counts(queue, clock):
    queue.add(A, after=30)
    queue.add(A, after=10)
    queue.add(A, after=20)
    assert queue.take() is None
    clock.now += 10
    assert taken(queue) == [A]
    clock.now += 60
    assert taken(queue) == []


def test_a_happening_comes_before_the_time_to_look_again(queue, clock):
    queue.add(A)
    queue.done(queue.take(), again=30)
    queue.add(A)
    assert queue.take() == A
    queue.done(A, again=5)
    clock.now += 5
    assert taken(queue) == [A]


def test_something_that_happens_meanwhile_wins_over_looking_again_later(queue, clock):
    queue.add(A)
    queue.take()
    queue.add(A)
    queue.done(A, again=30)
    assert taken(queue) == [A]
    clock.now += 60
    assert taken(queue) == []


def test_new_jobs_come_before_changed_ones_and_those_before_routine(queue, clock):
    for key in (A, B):
        queue.add(key)
        queue.take()
        queue.done(key, again=10)
    clock.now += 10  # A and B want to be looked at again
    queue.add(B)
    queue.add(C)
    assert taken(queue) == [C, B, A]


def test_routine_is_not_starved_by_changes(queue, clock):
    queue.add(A)
    queue.done(queue.take(), again=1)
    queue.add(B)
    queue.done(queue.take(), again=100)
    clock.now += 1
    assert len(queue) == 1  # A waits from now on
    clock.now += 6
    queue.add(B)
    assert queue.take() == A


def test_a_failing_job_waits_longer_each_time_up_to_a_minute(queue, clock):
    waits = []
    queue.add(A)
    for _ in range(10):
        assert queue.take() == A
        waits.append(queue.failed(A))
        clock.now += waits[-1] - 0.01
        assert queue.take() is None
        clock.now += 0.01
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_success_forgets_the_failures(queue, clock):
    queue.add(A)
    for _ in range(5):
        clock.now += queue.failed(queue.take())
    queue.done(queue.take(), again=1)
    clock.now += 1
    assert queue.failed(queue.take()) == 0.5


def test_failures_are_spread(clock):
    queue = Queue(clock, jitter=random.Random(1).random)
    keys = [("ns", str(i)) for i in range(50)]
    waits = []
    for key in keys:
        queue.add(key)
        waits.append(queue.failed(queue.take()))
    assert 0.25 <= min(waits) < 0.3
    assert 0.45 < max(waits) <= 0.5


def test_a_change_ends_the_wait_of_a_failing_job_but_not_at_once(queue, clock):
    queue.add(A)
    for _ in range(6):
        clock.now += queue.failed(queue.take())
    queue.take()
    assert queue.failed(A) == 32
    queue.add(A)
    assert queue.take() is None  # a job whose failure itself changes something must not spin
    clock.now += 0.25
    assert taken(queue) == [A]


def test_what_the_api_server_asks_for_is_kept_whatever_happens(queue, clock):
    queue.add(A)
    queue.take()
    queue.add(A)
    assert queue.failed(A, hold=20) == 20
    queue.add(A)
    clock.now += 19.9
    assert queue.take() is None
    clock.now += 0.1
    assert taken(queue) == [A]


def test_workers_get_each_wish_once_and_in_time():
    async def main() -> None:
        queue, active, processed = Queue(), set(), []
        chance = random.Random(7)

        async def worker() -> None:
            while True:
                key = await queue.get()
                assert key not in active
                active.add(key)
                await asyncio.sleep(chance.random() / 500)
                active.discard(key)
                processed.append(key)
                if chance.random() < 0.2:
                    queue.failed(key)
                else:
                    queue.done(key)

        workers = [asyncio.create_task(worker()) for _ in range(8)]
        await asyncio.sleep(0)  # all wait
        keys = [("ns", str(i)) for i in range(40)]
        for _ in range(20):
            for key in chance.sample(keys, 10):
                queue.add(key, after=chance.choice([None, None, 0.001, 0.005]))
            await asyncio.sleep(0.002)
        last = ("ns", "last")
        queue.add(last, after=0.01)
        async with asyncio.timeout(60):
            while last not in processed or len(queue) or active:
                await asyncio.sleep(0.01)
        assert not any(task.done() for task in workers)
        for task in workers:
            task.cancel()
        assert set(processed) >= {last}
        assert len(processed) < 20 * 10 + 1 + 40  # coalesced, but for what failed

    asyncio.run(main())
