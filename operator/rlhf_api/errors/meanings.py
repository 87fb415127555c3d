"""Meanings of unknown keys: a field of the manifest, or none and what to do instead."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from .model_fields import field_paths, keys_of, model_at
from .no_fields import ANSWERS
from .other_names import OTHER_NAMES
from .problem import path
from .similar import closest, plain

_MOST = 3
"""Maximum number of fields named in a message."""
_VAGUE = {"name", "path", "type", "kind", "key", "value", "size", "device", "config"}
"""Words that mean another thing in each section."""
_OF_EACH = {
    *("microBatchTokens", "engineArguments", "tensorParallelSize"),
    *("rank", "alpha", "rankStabilized", "weightDecomposed", "targetModules"),
}
"""Fields of several roles or models, of which the one beside the unknown key is meant."""


@dataclass(frozen=True)
class Algorithm:
    """The algorithm of a document: `section` is the path of its settings, `others` those of the other algorithms'."""

    name: str = ""
    section: str = ""
    others: tuple[str, ...] = ()


UNKNOWN = Algorithm()
"""Of a document that names no algorithm, or none that exists."""


@dataclass(frozen=True)
class Meaning:
    """Of an unknown key: the key beside it that was `mistyped`, paths of the `fields` that it may stand for, or an
    `answer`; nothing if it is not known."""

    mistyped: str = ""
    fields: tuple[str, ...] = ()
    answer: str = ""


def meaning_of(model: type[BaseModel], location: Sequence[int | str], algorithm: Algorithm) -> Meaning:
    """The meaning of the unknown key at `location`: a name of another system, in the sense that it has in its section
    or under the algorithm; else a mistyped key beside it, or a field of this name in another place."""
    key, above, keys = str(location[-1]), path(location[:-1]), keys_of(model_at(model, location[:-1]))
    sections = [part for part in location[:-1] if isinstance(part, str)][-1:]
    senses = [plain(f"{section}.{key}") for section in (*sections, algorithm.name)] + [plain(key)]
    known = next((sense for sense in senses if sense in OTHER_NAMES or sense in ANSWERS), "")
    if typed := closest(key, keys, 1 if known else 0.8):
        return Meaning(typed, (f"{above}.{typed}".lstrip("."),))
    if known in ANSWERS:
        return Meaning(answer=ANSWERS[known]) if "spec" in model.model_fields else Meaning()
    ends = OTHER_NAMES.get(known) or (() if plain(key) in _VAGUE else (plain(key),))
    lasts = {end.rpartition(".")[2]: "." not in end for end in ends}
    if beside := [last for last, short in lasts.items() if last in keys and (short or last in _OF_EACH)]:
        return Meaning(fields=tuple(f"{above}.{last}" for last in beside))
    fields = list(dict.fromkeys(field for end in ends for field in _places(model, end, above, algorithm)))
    if meant := [field for field in fields if field.rpartition(".")[0] == above] or fields:
        return Meaning(fields=tuple(meant[:_MOST]))
    if any(_matching(model, end) for end in ends):
        last = (ends[0] if known else key).rpartition(".")[2]
        return Meaning(answer=f"remove it: the algorithm {algorithm.name} has no {last}")
    return Meaning()


def _places(model: type[BaseModel], end: str, above: str, algorithm: Algorithm) -> list[str]:
    """Paths that end so: those in the algorithm's own section, or else those of the pods of the role whose section is
    `above`, or else the outermost, but none of other algorithms."""
    paths = [
        path
        for path in _matching(model, end)
        if not path.startswith(tuple(f"{o}." for o in algorithm.others))
    ]
    if own := [path for path in paths if path.startswith(f"{algorithm.section}.")]:
        return own
    paths = [path for path in paths if path.startswith(f"{above}.pods.")] or paths
    outermost = min((path.count(".") for path in paths), default=0)
    return [path for path in paths if path.count(".") == outermost]


def _matching(model: type[BaseModel], end: str) -> list[str]:
    return [path for path in field_paths(model) if f".{plain(path)}".endswith(f".{plain(end)}")]
