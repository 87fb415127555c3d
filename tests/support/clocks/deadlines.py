"""The clock by which an item is late that makes no progress: it stands still but where a test turns it on."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from rlhf_trainer.dispatch import assignments, dispatch
from rlhf_trainer.dispatch.assignments import Assigned, Assignments

LOOK_SECONDS = 0.01


class Clock:
    """`looks` counts looks at who is late; each begins with a call of `look`, with the number of items that each member
    has, by its uid."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0
        self._last_sign, self._waits = Counter[int](), Counter[int]()

    def on_check(self, load: Counter[str]) -> None:
        """Nothing, unless a test has something to do here."""

    def progress(self, place: int) -> None:
        self._last_sign[place] += 1

    async def wait(self, place: int, seconds: float) -> None:
        """In place of a server's sleep before each frame for the item of this place: the frame before has come, the
        clock goes on, and who is late by it has been looked for. On the dispatcher's loop."""
        if seconds:
            await self._until(lambda: self._last_sign[place] >= self._waits[place])
            self._waits[place] += 1
            self.now += seconds
            before = self.looks
            await self._until(lambda: self.looks > before)

    @staticmethod
    async def _until(happened) -> None:
        while not happened():
            await asyncio.sleep(LOOK_SECONDS / 2)


@contextmanager
def clock() -> Iterator[Clock]:
    """Of all rounds that begin in the block."""
    made, progress, check_late = Clock(), Assigned.progress, Assignments.check_late

    def record_progress(self: Assigned) -> None:
        progress(self)
        made.progress(self.place)

    def record_check(self: Assignments, assigned: Assigned) -> bool:
        made.on_check(self._load)
        made.looks += 1
        return check_late(self, assigned)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignments, "time", SimpleNamespace(monotonic=lambda: made.now))
        patch.setattr(dispatch, "LOOK_SECONDS", LOOK_SECONDS)
        patch.setattr(Assigned, "progress", record_progress)
        patch.setattr(Assignments, "check_late", record_check)
        yield made
