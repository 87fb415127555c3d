"""The error of a request, and arguments of requests within their bounds."""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import TypeVar

Query = Mapping[str, str]
Choice = TypeVar("Choice", bound=str)
_LAST = 2**53 - 1


class Refusal(Exception):
    """A request that has no answer: 400 for a wrong argument, 404 for what is not there; the text is for the user."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def read_count(query: Query, name: str, default: int, least: int = 0, most: int = _LAST) -> int:
    """A whole number of the query. Raises Refusal for another one."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 17 and least <= int(text) <= most):
        raise Refusal(400, f"{name} must be a whole number from {least} to {most}; got {text[:40]!r}")
    return int(text)


def read_choice(query: Query, name: str, choices: Sequence[Choice]) -> Choice:
    """One of the choices, the first unless given. Raises Refusal for another word."""
    text = query.get(name)
    if not text:
        return choices[0]
    match = next((choice for choice in choices if choice == text), None)
    if match is None:
        raise Refusal(400, f"{name} must be one of {', '.join(choices)}; got {text[:40]!r}")
    return match


def read_number(query: Query, name: str, default: float) -> float:
    """A finite number of the query. Raises Refusal for another one."""
    text = query.get(name, "")
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = nan
    if not isfinite(number):
        raise Refusal(400, f"{name} must be a number; got {text[:40]!r}")
    return number
