"""The guessing game for a chat model: each reply asks for a number of the range that is left."""

from collections.abc import Mapping
from typing import Any


class Ranges:
    """One episode. The row's conversation opens it, and ends with a question as `question` has it."""

    def __init__(self, *, highest: int) -> None:
        self._highest = highest

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begins with the row's own prompt."""
        self._number, self._possible = row["number"], range(1, self._highest + 1)

    def step(self, message: Mapping[str, Any]) -> tuple[str, float, bool]:
        """Judges a turn, which is lost unless it is a number of the range and nothing else."""
        text = message["content"].strip()
        if not text.isdecimal() or int(text) not in self._possible:
            return "", 0.0, True
        guess = int(text)
        if guess == self._number:
            return "", 1.0, True
        if guess < self._number:
            self._possible = range(guess + 1, self._possible.stop)
        else:
            self._possible = range(self._possible.start, guess)
        return question(self._possible), 0.0, False


def question(possible: range) -> str:
    """Names the range that is left; a turn answers it."""
    return f"A number from {possible[0]} to {possible[-1]}:"
