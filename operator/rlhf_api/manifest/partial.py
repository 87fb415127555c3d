"""Applies the rules to a manifest with invalid fields, by putting stand-ins of the right type in their place.

As nobody wrote the stand-ins, only problems are reported that the rules find with every one of them and that do not
concern the invalid fields. A field that an unknown key stands for counts as invalid, unless the document has it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors.meanings import Algorithm, meaning_of
from ..errors.messages import choices
from ..errors.problem import MOST, Problem, path

Location = tuple[int | str, ...]
Rules = Callable[[Any], Iterable[Problem]]
_STAND_INS = (True, False, 1, 2, 2**20, 0.5)


def further(
    document: Mapping[str, Any],
    error: ValidationError,
    model: type[BaseModel],
    rules: Rules,
    algorithm: Algorithm,
) -> tuple[list[Problem], Any]:
    """Problems that the rules find in the rest of a document, and its model with stand-ins for the invalid fields; no
    problems and None if a missing value has no stand-in, or if more than `MOST` fields are invalid: each takes several
    validations."""
    if error.error_count() > MOST:
        return [], None
    values: dict[Location, list[Any]] = {}
    wrong, meant = list[str](), list[str]()
    for details in error.errors():
        at = _field(details["loc"])
        values.setdefault(at, []).extend([*choices(details), *_STAND_INS])
        if details["type"] != "extra_forbidden":
            wrong.append(path(at))
        else:
            meant += meaning_of(model, at, algorithm).fields
    for field in meant:
        at = tuple(field.partition("[]")[0].split("."))
        if not _has(document, at):
            values.setdefault(at, [*_STAND_INS])
            wrong.append(path(at))
    bare = _without(document, list(values))
    ways = {
        at: [made for made in (bare, *(_set(bare, at, value) for value in given)) if _fits(made, at, model)]
        for at, given in values.items()
    }
    results, first = list[list[Problem]](), None
    for i in range(max((len(made) for made in ways.values()), default=0)):
        joined: Any = bare
        for at, made in ways.items():
            if made:
                joined = _over(joined, made[min(i, len(made) - 1)], at)
        try:
            job = model.model_validate_json(json.dumps(joined))
        except ValidationError:
            continue
        first = first or job
        results.append(list(rules(job)))
    common = [p for p in (results[0] if results else []) if all(p in other for other in results)]
    return [problem for problem in common if not _concerns(problem, wrong)], first


def _field(location: Location) -> Location:
    """Location of the object's key whose value is wrong; a list counts as a whole."""
    numbers = [i for i, part in enumerate(location) if isinstance(part, int)]
    return location[: numbers[0]] if numbers else location


def _has(node: Any, at: Location) -> bool:
    for part in at:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _set(node: Any, at: Sequence[int | str], value: Any) -> Any:
    if not at:
        return value
    below = node if isinstance(node, Mapping) else {}
    return {**below, at[0]: _set(below.get(at[0]), at[1:], value)}


def _over(document: Any, other: Any, at: Location) -> Any:
    """The document with the other one's value at a location; unchanged where the other has none."""
    for part in at:
        if not isinstance(other, Mapping) or part not in other:
            return document
        other = other[part]
    return _set(document, at, other)


def _fits(document: Any, at: Location, model: type[BaseModel]) -> bool:
    """True if no problem is about this place of the document."""
    try:
        model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        return not any(details["loc"][: len(at)] == at for details in error.errors())
    return True


def _concerns(problem: Problem, wrong: Sequence[str]) -> bool:
    """True if the problem is about one of the fields, about an object that contains one, or names one."""
    return any(
        problem.where.startswith(field)
        or field.startswith(problem.where)
        or re.search(rf"\b{re.escape(field.rpartition('.')[2])}\b", problem.message)
        for field in wrong
    )


def _without(node: Any, locations: Sequence[Location]) -> Any:
    """A copy of the document without the keys of its objects that stand at `locations`."""
    below: dict[int | str, list[Location]] = {}
    for location in locations:
        below.setdefault(location[0], []).append(location[1:])
    if not isinstance(node, Mapping):
        return node
    remainder = {key: value for key, value in node.items() if () not in below.get(key, [])}
    return {
        key: _without(value, below.get(key, [])) if key in below else value
        for key, value in remainder.items()
    }
