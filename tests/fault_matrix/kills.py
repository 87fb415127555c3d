"""Kills at random of one job that generates ahead of training: half at a named point of a step, half at any time."""

import random
from dataclasses import dataclass

from tests.fault_matrix.cells import MOMENTS, Cell, Mode

MODE: Mode = "staleness 2"
KILLED = ("trainer rank 0", "trainer rank 1", "torchrun", "generator server", "generator engine")
ANY_TIME = "any time"
SPAN_SECONDS = 4.0
"""A kill at any time comes within this of the beginning of a step: longer than a step takes."""


@dataclass(frozen=True)
class Kill:
    """SIGKILL for a victim of `cells`: at a moment, or `after` so many seconds of a step where it is ANY_TIME."""

    victim: str
    moment: str
    after: float | None = None

    @property
    def cell(self) -> Cell:
        return Cell(MODE, self.victim, "SIGKILL", self.moment)


def schedule(seed: int, kills: int) -> list[Kill]:
    """The same for the same seed."""
    draw = random.Random(seed)

    def one(number: int) -> Kill:
        victim = draw.choice(KILLED)
        if number % 2:
            return Kill(victim, ANY_TIME, round(draw.uniform(0, SPAN_SECONDS), 3))
        return Kill(victim, draw.choice(list(MOMENTS)))

    return draw.sample(found := [one(number) for number in range(kills)], len(found))
