"""Solve rates of rows, by the scores of their responses, and the choice of rows to ask again."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.sections.data import Curriculum


class SolveRates:
    """Shares of solved responses of each row's latest answers. The same on every rank."""

    def __init__(self, settings: Curriculum, seed: int) -> None:
        self._settings, self._seed = settings, seed
        self._latest: dict[int, dict[int, float]] = {}
        """By row, its shares by their positions in the run's order."""

    def record(self, position: int, row: int, scores: Sequence[float]) -> None:
        """Records a group of responses to a row, in place of others at the same position: those were given up, and the
        prompt asked again."""
        solved = sum(score >= self._settings.solved_at for score in scores) / len(scores)
        self._keep(row, {**self._latest.get(row, {}), position: solved})

    def asks(self, position: int, row: int) -> bool:
        """True for a row that is to be asked at a position of the run's order: with probability max(floor, 1 - s), s
        the mean of its latest shares. As all rows come by equally often, they are asked in proportion to it. Drawn for
        the position, so that a resumed run draws the same."""
        latest = self._latest.get(row)
        if latest is None:
            return True
        chance = max(self._settings.floor, 1 - sum(latest.values()) / len(latest))
        return random.Random(f"{self._seed}/curriculum/{position}").random() < chance

    def state(self) -> dict[str, list[list[float]]]:
        """State for a snapshot's JSON, in which pairs are lists."""
        return {str(row): [*map(list, shares.items())] for row, shares in self._latest.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`."""
        self._latest = {}
        for row, shares in state.items():
            self._keep(int(row), dict(shares))

    def _keep(self, row: int, shares: Mapping[int, float]) -> None:
        self._latest[row] = dict(sorted(shares.items())[-self._settings.window :])
