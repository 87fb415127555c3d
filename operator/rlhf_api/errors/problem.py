"""A problem of a manifest, as a message: the field, the value, the remedy."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

MOST = 100
"""Maximum number of problems of one kind that are reported; a manifest of an API server's size may have a hundred
thousand."""
_SHOWN = 80
"""Longest value, and longest key of a path, in characters."""


@dataclass(frozen=True)
class Problem:
    """One problem: `where` is a field's path or a file and line, `message` says what is wrong and what to do."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class InvalidJob(ValueError):
    """A job that can't run as it stands; `problems` has at least one entry, each once. `job`: as much of it as could
    be read, without its wrong fields, where that makes one."""

    def __init__(self, problems: Sequence[Problem], job: Any = None) -> None:
        self.problems, self.job = tuple(dict.fromkeys(problems)), job
        super().__init__("\n".join(map(str, self.problems)))


def show(value: object) -> str:
    """A value as shown in a message: short, on one line, spelled as in its file."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def first_line(error: BaseException) -> str:
    """The first line of another library's words, or the kind of an error without words."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def kind_of(value: object) -> str:
    """The JSON type of a value in words, for messages that must not quote it."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else "a single value"


def path(location: Sequence[int | str]) -> str:
    """`("spec", "data", "train", 0)` as `spec.data.train[0]`; a long key is cut."""
    return "".join(
        f".{part}" if isinstance(part, str) and _is_word(part) else f"[{show(part)}]" for part in location
    ).lstrip(".")


def _is_word(key: str) -> bool:
    return len(key) <= _SHOWN and re.fullmatch(r"[\w/-]+", key) is not None


def first(problems: Iterable[Problem]) -> list[Problem]:
    """At most `MOST` problems, and one more that says that there are others, which are not computed."""
    reported = list(islice(problems, MOST + 1))
    if len(reported) > MOST:
        reported[MOST:] = [Problem("manifest", f"has more problems than these {MOST}")]
    return reported
