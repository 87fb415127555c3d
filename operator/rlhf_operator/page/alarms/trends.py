"""Trend of a figure: its mean over the first steps of a run and over the last ones."""

import statistics
from collections.abc import Sequence
from math import isfinite
from typing import NamedTuple

FEWEST_STEPS = 10
"""Below them nothing is said about how a figure moves."""
_WINDOW = (5, 50)
"""Fewest and most steps of a mean."""


class Trend(NamedTuple):
    """Means over the first and the last steps; `spread`: the standard deviation of the first ones."""

    early: float
    late: float
    spread: float

    @property
    def has_risen(self) -> bool:
        """True if it went up by more than chance moves it."""
        return self.late - self.early > max(self.spread, 0.02 * abs(self.early))


def find_trend(values: Sequence[float]) -> Trend | None:
    """The trend of a column; None for one of too few finite values, or of values beyond floats."""
    finite = [value for value in values if isfinite(value)]
    if len(finite) < FEWEST_STEPS:
        return None
    width = min(max(len(finite) // 5, _WINDOW[0]), _WINDOW[1])
    first, last = finite[:width], finite[-width:]
    try:
        trend = Trend(statistics.fmean(first), statistics.fmean(last), statistics.pstdev(first))
    except OverflowError:
        return None
    return trend if all(map(isfinite, trend)) else None
