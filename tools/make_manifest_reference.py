"""Writes docs/reference/manifest.md from the contract's models: every field, its type, default and meaning.

.venv/bin/python tools/make_manifest_reference.py
"""

import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.algorithms.policy_gradient import PolicyGradient
from rlhf_api.schema.descriptions import descriptions
from rlhf_api.sections.deepspeed import DeepSpeedConfig
from rlhf_api.sections.pods import PodSettings
from rlhf_api.spec import Spec

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "manifest.md"
HEAD = """# The manifest

<!-- Made by tools/make_manifest_reference.py; a test keeps it in step with the code. -->

An `RLHFJob` is one YAML document: `apiVersion: rlhf.dev/v1alpha1`, `kind: RLHFJob`, `metadata.name` (a DNS label of at
most 40 characters that begins with a letter) and the `spec` below. `rlhf validate FILE` checks one without running it.
Unknown keys are errors, and the message names the key that was likely meant. Relative paths, and the modules of
`module:function`, are looked for in the directory in which the job runs.

On a cluster the same document goes to `kubectl apply`, and `kubectl explain rlhfjob.spec.ppo` tells what stands here.
kubectl refuses an unknown key; the server drops it for clients that do not ask for validation. While a job runs, only
`suspend`, `generator.replicas`, `activeDeadlineSeconds`, `ttlSecondsAfterFinished` and `podRetention` may change; a
suspended job may change in everything, and so may one that failed validation. A null is a field left out.

Unless a field says less, a string has at most 4096 characters, a list 4096 items and an object 256 keys. What is inside
of free-form objects (`template`, `engineArguments`, `create.config`, `custom.settings`) has no
bounds.
"""


SHARED = "Settings of algorithms that sample responses"
"""Heading of the fields that several algorithms' sections have."""
DEEPSPEED = "DeepSpeed's own configuration, spelled as DeepSpeed spells it; every key is checked"
COLUMNS = "| field | type | default | meaning |\n| --- | --- | --- | --- |"


def inner_models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for inner in typing.get_args(annotation) for model in inner_models(inner)]


def type_words(annotation: Any) -> str:
    """A type as the page shows it."""
    if annotation is type(None):
        return "null"
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " \\| ".join(f"`{value}`" for value in inner)
    if origin is typing.Annotated:
        return type_words(inner[0])
    if origin is tuple:
        return (
            f"list of {type_words(inner[0])}"
            if inner[-1] is Ellipsis
            else f"[{', '.join(map(type_words, inner))}]"
        )
    if origin is dict:
        return "object"
    if inner:
        return " or ".join(type_words(part) for part in inner if part is not type(None))
    names = {"str": "string", "bool": "true/false", "int": "integer", "float": "number"}
    name = getattr(annotation, "__name__", str(annotation))
    return names.get(name, "object")


def default_words(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        return ""
    if field.default is None:
        return ""
    return f"`{json.dumps(to_jsonable_python(field.default, exclude_none=True))}`"


def sections(model: type[BaseModel], where: str) -> Iterator[str]:
    """A section for the model and each model inside it, depth first."""
    own, docstrings = differences(model), descriptions(model)
    yield f"\n## `{where}`\n\n{words(model)}\n"
    if own.keys() != model.model_fields.keys():
        yield f"All fields of [{SHARED.lower()}](#{SHARED.lower().replace(' ', '-')}){', and:' if own else '.'}\n"
    deeper = []
    if own:
        yield COLUMNS
    for name, field in own.items():
        key = field.alias or name
        meaning = one_line(docstrings.get(name))
        models = inner_models(field.annotation)
        if models and models[0] is DeepSpeedConfig:
            meaning = meaning or DEEPSPEED
        elif models and models[0] is PodSettings and where != "spec":
            meaning = "On a cluster: added to `spec.pods`, with the same fields"
        elif models:
            many = "[]" if typing.get_origin(field.annotation) is tuple else ""
            deeper.append((models[0], f"{where}.{key}{many}"))
            meaning = meaning or f"see `{where}.{key}{many}`"
        yield row(key, field, meaning)
    for inner, place in deeper:
        yield from sections(inner, place)


def shared_section() -> Iterator[str]:
    """The section of `PolicyGradient`, which is no place in a manifest itself."""
    places = [
        f"`spec.{to_camel(a.name)}`"
        for a in ALGORITHMS.values()
        if a.settings and issubclass(a.settings, PolicyGradient)
    ]
    yield f"\n## {SHARED}\n\nIn {', '.join(places)}; where a default differs, its own section says so.\n"
    yield COLUMNS
    docstrings = descriptions(PolicyGradient)
    for name, field in PolicyGradient.model_fields.items():
        yield row(field.alias or name, field, one_line(docstrings.get(name)))


def differences(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The model's fields, without those that it has from `PolicyGradient` as they are."""
    shared = PolicyGradient.model_fields if issubclass(model, PolicyGradient) else {}
    docstrings, usual = descriptions(model), descriptions(PolicyGradient)
    return {
        name: field
        for name, field in model.model_fields.items()
        if name not in shared
        or (field.default, docstrings.get(name)) != (shared[name].default, usual.get(name))
    }


def row(key: str, field: FieldInfo, meaning: str) -> str:
    return f"| `{key}` | {type_words(field.annotation)} | {default_words(field)} | {meaning} |"


def words(model: type[BaseModel]) -> str:
    return re.sub(r"\s+", " ", model.__doc__ or "").strip()


def one_line(text: str | None) -> str:
    """A description as a cell of a table."""
    return re.sub(r"\s+", " ", text or "").strip().replace("|", "\\|")


def page() -> str:
    return HEAD + "\n".join((*sections(Spec, "spec"), *shared_section())) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
