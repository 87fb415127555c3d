"""Largest sizes of what a manifest or a status holds where its field names no smaller one.

A server estimates the worst case of a CEL rule from the bounds of the schema, so nothing in it may be unbounded. The
CRD states these bounds, and `oversized` refuses the same where no CRD is at hand. What is inside of free-form objects
(`JsonValue`) belongs to Kubernetes, vLLM or Hugging Face and has no bounds here.
"""

import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, JsonValue

from .problems import Problem, path, show

TEXT = 4096
"""Characters (Unicode code points) of a string."""
ITEMS = 4096
"""Items of a list."""
KEYS = 256
"""Keys of an object whose keys are the user's."""


def oversized(node: Any, *location: int | str) -> Iterator[Problem]:
    """Problems of the strings, lists and maps in a model at `location` that are larger than the bounds."""
    if isinstance(node, BaseModel):
        for name, field in type(node).model_fields.items():
            at, value = (*location, field.alias or name), getattr(node, name)
            if not _free_form(field.annotation):
                yield from oversized(value, *at)
            elif value is not None:
                yield from _too_long(value, KEYS, "keys", at)
    elif isinstance(node, str):
        yield from _too_long(node, TEXT, "characters", location)
    elif isinstance(node, Mapping):
        yield from _too_long(node, KEYS, "keys", location)
        for key, value in node.items():
            yield from oversized(value, *location, key)
    elif isinstance(node, tuple):
        yield from _too_long(node, ITEMS, "items", location)
        for i, item in enumerate(node):
            yield from oversized(item, *location, i)


def _free_form(annotation: Any) -> bool:
    return annotation is JsonValue or any(map(_free_form, typing.get_args(annotation)))


def _too_long(
    value: str | Mapping[str, Any] | tuple[Any, ...], most: int, what: str, location: tuple[int | str, ...]
) -> Iterator[Problem]:
    if len(value) > most:
        message = f"must have at most {most} {what}; got {len(value)}"
        yield Problem(path(location), f"{message}: {show(value)}" if isinstance(value, str) else message)
