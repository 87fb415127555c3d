"""Fields of the models by their paths, and the keys of an object."""

import typing
from collections.abc import Iterator, Sequence
from functools import cache
from types import GenericAlias
from typing import Any

from pydantic import BaseModel


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models inside an annotation such as `X | None` or `tuple[X, ...]`."""
    if isinstance(annotation, type) and not isinstance(annotation, GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for inner in typing.get_args(annotation) for model in models_in(inner)]


def model_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model of the object at `location`; None if it has none."""
    for part in location:
        if isinstance(part, int):
            continue
        fields = [f for name, f in model.model_fields.items() if (f.alias or name) == part]
        inner = models_in(fields[0].annotation) if fields else []
        if not inner:
            return None
        model = inner[0]
    return model


def keys_of(model: type[BaseModel] | None) -> list[str]:
    """The valid keys of a model's objects."""
    return [] if model is None else [f.alias or name for name, f in model.model_fields.items()]


def in_text_map(model: type[BaseModel], location: Sequence[str]) -> bool:
    """True if `location` is a key of a field of type `dict[str, str]`, with or without constraints on the strings."""
    for i, part in enumerate(location):
        if part.startswith("["):
            continue
        fields = [f for name, f in model.model_fields.items() if (f.alias or name) == part]
        if fields and i == len(location) - 2 and _is_text_map(fields[0].annotation):
            return True
        inner = models_in(fields[0].annotation) if fields else []
        if not inner:
            return False
        model = inner[0]
    return False


def _is_text_map(annotation: Any) -> bool:
    if typing.get_origin(annotation) is dict:
        value = typing.get_args(annotation)[1]
        return (typing.get_args(value)[0] if typing.get_origin(value) is typing.Annotated else value) is str
    return any(_is_text_map(inner) for inner in typing.get_args(annotation) if inner is not annotation)


@cache
def field_paths(model: type[BaseModel]) -> tuple[str, ...]:
    """Paths of all fields of a model; `[]` follows the name of a list."""
    return tuple(_walk(model, ""))


def _walk(model: type[BaseModel], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        path = f"{above}{field.alias or name}"
        yield path
        for inner in models_in(field.annotation):
            yield from _walk(inner, f"{path}{'[]' if _is_list(field.annotation) else ''}.")


def _is_list(annotation: Any) -> bool:
    return typing.get_origin(annotation) is tuple or any(map(_is_list, typing.get_args(annotation)))
