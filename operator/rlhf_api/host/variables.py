"""The environment variables that manifests take values from, and messages without these values."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .redaction import SHORTEST


class Variables(Mapping[str, str]):
    """Variables by name; knows which of them were read."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self._read = set[str]()

    def __getitem__(self, name: str) -> str:
        value = self._values[name]
        self._read.add(name)
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def conceal(self, message: str) -> str:
        """The message with `${NAME}` in place of the values that were read, also where they are cut short. A value of a
        few characters is replaced where it is the one that the message quotes."""
        read = {name: self._values[name] for name in self._read if self._values.get(name)}
        for name, value in sorted(read.items(), key=lambda item: -len(item[1])):
            for form in _forms(value):
                message = _replaced(message, form, f"${{{name}}}")
        return message


ENVIRONMENT = Variables(os.environ)
"""The environment of this command."""
NO_ENVIRONMENT = Variables({})
"""In place of it for a stranger's manifest: each `${NAME}` without a default is refused."""


def _forms(value: str) -> set[str]:
    """The value as messages may have it: as it is, in quotes, and as the number that it is."""
    return {value, repr(value)[1:-1], json.dumps(value)[1:-1], str(_scalar(value))}


def _scalar(value: str) -> Any:
    try:
        return yaml.safe_load(value) if re.fullmatch(r"[\w.+-]{1,40}", value) else value
    except (yaml.YAMLError, ValueError):
        return value


def _replaced(message: str, form: str, name: str) -> str:
    if len(form) < SHORTEST:
        return re.sub(
            rf"(got |value )(['\"]?){re.escape(form)}\2(?!\w)", lambda match: f"{match[1]}{name}", message
        )
    message = message.replace(form, name)
    begin = form[: SHORTEST - 1]
    if begin in message and "..." in message:
        cut = (form[:length] for length in range(len(form) - 1, len(begin) - 1, -1))
        for part in cut:
            message = message.replace(f"{part}...", f"{name}...")
    return message
