"""The environment of `episodes.py`, apart from it, as a user's class is from the trainer."""

from collections.abc import Mapping
from typing import Any


class Counter:
    """The environment: says which turn it has read, and never ends."""

    def reset(self, row: Mapping[str, Any]) -> str:
        self._number, self._turn = row["number"], 0
        return f"Task {self._number}: begin with the first of the numbers."

    def step(self, _message: Mapping[str, Any]) -> tuple[str, float, bool]:
        self._turn += 1
        return f"That was turn {self._turn}. Now the next of the numbers, please.", 0.5, False
