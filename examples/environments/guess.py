"""A guessing game: find the number of the row; each reply says where it lies."""

from collections.abc import Mapping
from typing import Any


class Guess:
    """One episode. The manifest's settings are its keyword arguments."""

    def __init__(self, *, highest: int) -> None:
        self._highest = highest

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begins with the row's own prompt. All episodes of a prompt are one game: what is random is in the row."""
        self._number, self._possible = row["number"], range(1, self._highest + 1)

    def step(self, message: Mapping[str, Any]) -> tuple[str, float, bool]:
        """(what the policy reads next, the reward of this turn, whether the episode is over)."""
        text = message["content"].strip()
        if not text.isdecimal() or int(text) not in self._possible:
            return "", 0.0, True  # lost: earlier replies rule this out
        guess = int(text)
        if guess == self._number:
            return "", 1.0, True
        if guess < self._number:
            self._possible = range(guess + 1, self._possible.stop)
            return " higher :", 0.0, False
        self._possible = range(self._possible.start, guess)
        return " lower :", 0.0, False
