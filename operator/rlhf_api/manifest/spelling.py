"""Keys of a manifest's file as its models have them: `top_p` becomes `topP` where a field has that name in Python.

Keys inside maps and free-form objects are their owners' and stay, as do those of DeepSpeed, whose own are snake_case.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from ..errors.model_fields import models_in
from ..errors.problem import InvalidJob, Problem, path
from ..field_types import former_names
from ..sections.environment import Environment, holds_variables

Location = tuple[int | str, ...]


def in_camel_case(document: Any, model: type[BaseModel], where: str) -> Any:
    """A document of `model` with its keys renamed; `where` begins the place of a problem.

    Raises:
        InvalidJob: an object has a field in both spellings.
    """
    problems: list[Problem] = []
    made = _renamed(document, model, (), problems)
    if problems:
        raise InvalidJob([Problem(f"{where}{problem.where}", problem.message) for problem in problems])
    return made


def keys_in_camel_case(keys: Sequence[str], model: type[BaseModel]) -> list[str]:
    """The keys of a path, with places in lists as `[i]`, renamed."""
    made: list[str] = []
    below: type[BaseModel] | None = model
    for i, key in enumerate(keys):
        if below is None or key.startswith("["):
            made.append(key)
            continue
        made.append(_aliases(below).get(key, key))
        below = _inner(below).get(made[-1])
        if below is Environment and keys[i + 1 :] and holds_variables({keys[i + 1]: ""}):
            made[-1], below = "env", None
    return made


def _renamed(node: Any, model: type[BaseModel] | None, at: Location, problems: list[Problem]) -> Any:
    if model is None:
        return node
    if isinstance(node, list):
        return [_renamed(item, model, (*at, i), problems) for i, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    aliases, inner, made = _aliases(model), _inner(model), dict[Any, Any]()
    for key, value in node.items():
        name = aliases.get(key) or key
        if inner.get(name) is Environment and holds_variables(value):
            name = "env"
        if name != key and name in node:
            message = f"is the same field as {name}, which is there too; remove one of them"
            problems.append(Problem(path((*at, key)), message))
        made[name] = _renamed(value, inner.get(name), (*at, key), problems)
    return made


@cache
def _aliases(model: type[BaseModel]) -> Mapping[str, str]:
    """The keys of a model's fields by their names in Python, and by those of earlier releases."""
    keys = {name: field.alias or name for name, field in model.model_fields.items()}
    former = former_names(model).items()
    return keys | {word: keys[name] for earlier, name in former for word in (earlier, to_snake(earlier))}


@cache
def _inner(model: type[BaseModel]) -> Mapping[str, type[BaseModel]]:
    """The models of the objects in a model's fields, by key."""
    fields = {field.alias or name: models_in(field.annotation) for name, field in model.model_fields.items()}
    return {key: models[0] for key, models in fields.items() if models}
