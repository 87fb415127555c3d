"""The environment of these jobs; a module of its own, since a process imports it."""

from collections.abc import Mapping
from typing import Any

from tests.faults.matrix.hook import wait_at_point


class Answering:
    """Counts the turns of an episode."""

    def reset(self, _row: Mapping[str, Any]) -> None:
        self._turns = 0

    def step(self, _message: Mapping[str, Any]) -> tuple[str, float, bool]:
        wait_at_point("replying")
        self._turns += 1
        return f" ({self._turns}) ", 0.1, False
