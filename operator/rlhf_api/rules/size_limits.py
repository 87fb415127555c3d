"""Size limits of the strings, lists and maps of a manifest or status, for fields without a smaller one.

An API server estimates the worst-case cost of a CEL rule from the bounds in the schema, so nothing in it may be
unbounded. The CRD states these bounds, and `oversized` enforces them without a CRD. The content of free-form objects
(`JsonValue`) belongs to Kubernetes, vLLM or Hugging Face and is not bounded here.
"""

import functools
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, JsonValue

from ..errors.problem import Problem, path, show
from ..field_types import CarriedText

TEXT = 4096
"""Maximum length of a string, in characters (Unicode code points)."""
ITEMS = 4096
"""Maximum number of items of a list."""
KEYS = 256
"""Maximum number of keys of an object with user-defined keys."""


def oversized(node: Any, *location: int | str) -> Iterator[Problem]:
    """Problems of strings, lists and maps in the model at `location` that exceed the bounds."""
    if isinstance(node, BaseModel):
        for name, alias, free_form in _fields(type(node)):
            at, value = (*location, alias), getattr(node, name)
            if not free_form:
                yield from oversized(value, *at)
            elif value is not None:
                yield from _too_long(value, KEYS, "keys", at)
    elif isinstance(node, str):
        yield from _too_long(node, TEXT, "characters", location)
    elif isinstance(node, dict):
        yield from _too_long(node, KEYS, "keys", location)
        for key, value in node.items():
            yield from oversized(value, *location, key)
    elif isinstance(node, tuple):
        yield from _too_long(node, ITEMS, "items", location)
        for i, item in enumerate(node):
            yield from oversized(item, *location, i)


@functools.cache
def _fields(model: type[BaseModel]) -> tuple[tuple[str, str, bool], ...]:
    """Name, alias and whether it is free-form of each field: a walk through annotations takes longer than all else."""
    return tuple(
        (name, field.alias or name, _free_form(field.annotation))
        for name, field in model.model_fields.items()
    )


def _free_form(annotation: Any) -> bool:
    """True for content that is not bounded here, but elsewhere: that of Kubernetes and others, and of carried files."""
    return annotation in (JsonValue, CarriedText) or any(map(_free_form, typing.get_args(annotation)))


def _too_long(
    value: str | Mapping[str, Any] | tuple[Any, ...], most: int, what: str, location: tuple[int | str, ...]
) -> Iterator[Problem]:
    if len(value) > most:
        message = f"must have at most {most} {what}; got {len(value)}"
        yield Problem(path(location), f"{message}: {show(value)}" if isinstance(value, str) else message)
