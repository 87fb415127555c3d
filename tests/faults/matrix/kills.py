"""Kills of one job that generates ahead of training: at random, half of them at a named point of a step and half at any
time; or of one generator every minute, as spot instances are lost."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.faults.matrix.cells import MOMENTS, Cell, Mode, Victim

MODE: Mode = "staleness 2"
OF_GENERATOR_1 = ("generator server", "generator engine")
KILLED = ("trainer rank 0", "trainer rank 1", "torchrun", *OF_GENERATOR_1)
SLOWED = "generator-0"
"""The generator that runs for a fifth of the time where only the other one is killed; `inject.SLOW_SECONDS`."""
SPOT = tuple(Victim(f"generator-{i}", "EngineCore") for i in range(3))
SPOT_SECONDS = 60.0
"""From one loss of a generator to the next."""
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


def schedule(seed: int, kills: int, killed: Sequence[str] = KILLED) -> list[Kill]:
    """Kills of these victims, the same for the same seed."""
    draw = random.Random(seed)

    def one(number: int) -> Kill:
        victim = draw.choice(killed)
        if number % 2:
            return Kill(victim, ANY_TIME, round(draw.uniform(0, SPAN_SECONDS), 3))
        return Kill(victim, draw.choice(list(MOMENTS)))

    return draw.sample(kills_made := [one(number) for number in range(kills)], len(kills_made))
