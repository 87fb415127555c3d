"""A configuration of another system as it is read from a file: names, values, places."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

System = Literal["TRL", "verl", "OpenRLHF", "prime-rl"]

DEEPEST = 8
"""Sections of a name, at most."""


@dataclass(frozen=True)
class Setting:
    """`name`: with its sections, such as `actor.optim.lr`; `place`: file and line; `problem`: why there is no value."""

    name: str
    value: Any
    place: str
    problem: str = ""


@dataclass(frozen=True)
class Configuration:
    """The settings of a file; `algorithm`: of ours, "" if the file does not say."""

    system: System
    settings: tuple[Setting, ...]
    algorithm: str = ""


def flattened(table: Mapping[str, Any], place: str, above: str = "") -> Iterator[Setting]:
    """The settings of a table of tables; tables below `DEEPEST` others are values."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value and above.count(".") < DEEPEST:
            yield from flattened(value, place, f"{above}{key}.")
        else:
            yield Setting(f"{above}{key}", value, place)
