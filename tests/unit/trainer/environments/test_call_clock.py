"""Clock of a call: what it waits for does not count as long as that goes on."""

import asyncio
from itertools import count

import pytest

from rlhf_trainer.environments import call_clock
from rlhf_trainer.environments.call_clock import CLOCK, CallClock, waiting


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_clock, "SIGN_SECONDS", 0.01)


def test_a_wait_for_what_goes_on_does_not_count() -> None:
    async def wait() -> None:
        waits, enough = list[float](), asyncio.Event()

        def tell(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 20:
                enough.set()

        clock = CallClock(60, tell)
        CLOCK.set(clock)
        began = asyncio.get_running_loop().time()
        async with waiting(count().__next__), waiting(count().__next__):  # two at once, which pass once
            await enough.wait()
        elapsed = asyncio.get_running_loop().time() - began
        assert 0 <= clock.spent <= elapsed - sum(waits[:20]) + 0.01
        assert sum(waits[:20]) >= 0.1

    asyncio.run(wait())


def test_a_wait_for_what_does_not_go_on_counts() -> None:
    async def wait() -> None:
        waits, observations, enough = list[float](), count(), asyncio.Event()

        def stand_still() -> int:
            if next(observations) == 20:
                enough.set()
            return 0

        clock = CallClock(60, waits.append)
        CLOCK.set(clock)
        async with waiting(stand_still):
            await enough.wait()
        assert waits == []
        assert clock.spent >= 0.09

    asyncio.run(wait())
