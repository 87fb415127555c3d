"""A calculator as a tool: the policy learns to use it, rather than to guess."""

from collections.abc import Mapping
from typing import Any


class Calculator:
    """One episode. Its public methods beside `reset` and `step` are tools, which the policy calls by their names."""

    def reset(self, row: Mapping[str, Any]) -> None:
        """Begins with the row's own prompt."""
        self._result = str(row["result"])

    def multiply(self, a: int, b: int) -> int:
        """Multiplies two numbers.

        Args:
            a: The first factor.
            b: The second one.
        """
        return a * b

    def step(self, message: Mapping[str, Any]) -> tuple[str, float, bool]:
        """Judges the first turn that calls no tool."""
        return "", float(message["content"].strip() == self._result), True
