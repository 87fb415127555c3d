"""Generates structural schemas of a CustomResourceDefinition from pydantic models: no references, no alternatives."""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from ..field_types import INT_OR_STRING
from ..manifest.runtime import RuntimeEnvironment
from ..rules import size_limits
from ..rules.pods.template import MOST_ITEMS
from ..sections.environment import Environment
from ..sections.teacher import NamedTeacher
from .cel import RULES
from .descriptions import Described

Schema = dict[str, Any]

_KEPT = ("type", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")
_BOUNDS = {
    "string": {"maxLength": size_limits.TEXT},
    "array": {"maxItems": size_limits.ITEMS},
    "object": {"maxProperties": size_limits.KEYS},
}
_LIST_KEYS = {"conditions": ["type"], "volumes": ["name"]}
"""Keys of list items: two clients may each apply their own items, and the server refuses a duplicate key."""
_FORMERLY_FREE = (Environment.__name__, RuntimeEnvironment.__name__)
"""Models of objects that stored jobs and runtimes may hold with any keys: as variables, in an earlier release."""
_FREE = (NamedTeacher.__name__,)
"""Models that the operator checks alone: in full, those of a list would cost an API server too much at each write."""
_MODEL = "title"
"""Schema key with the model's name until `describe_once` removes it."""


def _template() -> Schema:
    """Schema of a pod template: bounds of what an admission policy walks; all else in it is free-form."""
    free: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    lists = {
        key: {"type": "array", "maxItems": most, "items": dict(free)} for key, most in MOST_ITEMS.items()
    }
    notes = {"annotations": {**free, "maxProperties": size_limits.KEYS}}
    return {"metadata": {**free, "properties": notes}, "spec": {**free, "properties": lists}}


def rules_of(model: str) -> list[Schema]:
    return [{"rule": rule.rule, "message": rule.message} for rule in RULES.get(model, ())]


def describe_once(root: Schema) -> None:
    """Removes the models' names, and keeps a repeated description once, in the topmost or first place.

    Another field with the same name and description, such as one of a common base, keeps only a default that differs;
    fields of a model that is described elsewhere keep nothing.
    """
    models, first, queue = set[str](), dict[tuple[str, str], str](), deque([("", root)])
    while queue:
        key, node = queue.popleft()
        words, default = node.get("description", ("", ""))
        if (key, words) in first and "properties" not in node:
            words, default = "", "" if default == first[key, words] else default
        else:
            first.setdefault((key, words), default)
        node["description"] = " ".join(part for part in (words, default) if part)
        if not node["description"]:
            del node["description"]
        model = node.pop(_MODEL, None)
        if model in models:
            _describe_nothing(node)
        elif model:
            models.add(model)
        queue.extend(_inner(node))


def _describe_nothing(node: Schema) -> None:
    for _, inner in _inner(node):
        inner.pop("description", None)
        _describe_nothing(inner)


def _inner(node: Schema) -> Iterator[tuple[str, Schema]]:
    yield from node.get("properties", {}).items()
    yield from (("", node[key]) for key in ("items", "additionalProperties") if key in node)


class Structural:
    """Pydantic's JSON schema of a model as a structural one: no references, no alternatives.

    For an object that users do not write (`status`) it gives neither defaults nor bounds of numbers.
    """

    def __init__(self, model: type[BaseModel], *, cel: bool, authored: bool = True) -> None:
        schema = model.model_json_schema(schema_generator=Described)
        self._models = schema.get("$defs", {})
        self._cel = cel
        self._authored = authored
        self.root = self._convert(schema)

    def _convert(self, node: Schema, key: str = "") -> Schema:
        if "$ref" in node:
            return self._reference(node, key)
        if INT_OR_STRING in node:
            return dict(node)
        if "anyOf" in node:
            return self._optional(node, key)
        made: Schema = {"description": self._description(node)}
        made |= {name: node[name] for name in _KEPT if name in node}
        for bound in ("minimum", "maximum") if self._authored else ():
            if bound in node:
                made[bound] = node[bound]
            exclusive = f"exclusive{bound.capitalize()}"
            if exclusive in node:
                made |= {bound: node[exclusive], exclusive: True}
        if node["type"] == "array":
            made["items"] = self._convert(node.get("items") or node["prefixItems"][0])
            if key in _LIST_KEYS:
                made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": _LIST_KEYS[key]}
        if node["type"] == "object":
            made |= self._object(node) if "properties" in node else self._map(node)
        if key == "template":
            made["properties"] = _template()
        if "enum" not in node and "properties" not in node:
            for name, most in _BOUNDS.get(node["type"], {}).items():
                made.setdefault(name, most)
        return made

    def _reference(self, node: Schema, key: str) -> Schema:
        """Inlines the model; the field's description comes before the model's own."""
        model = self._models[node["$ref"].removeprefix("#/$defs/")]
        return self._convert(
            {**model, **{name: node[name] for name in ("description", "default") if name in node}}, key
        )

    def _optional(self, node: Schema, key: str) -> Schema:
        """A nullable field as its type alone: null is the same as absent, and kubectl drops it."""
        (kind,) = (kind for kind in node["anyOf"] if kind != {"type": "null"})
        return self._convert(
            {**kind, **{name: value for name, value in node.items() if name != "anyOf"}}, key
        )

    def _map(self, node: Schema) -> Schema:
        (values,) = node.get("patternProperties", {"": node.get("additionalProperties")}).values()
        if values == {"$ref": "#/$defs/JsonValue"}:
            return {"x-kubernetes-preserve-unknown-fields": True}
        return {"additionalProperties": self._convert(values)}

    def _object(self, node: Schema) -> Schema:
        if node["title"] in _FREE:
            bounded = {"required": node["required"], "maxProperties": len(node["properties"])}
            return {"description": ("", ""), **bounded, "x-kubernetes-preserve-unknown-fields": True}
        made: Schema = {_MODEL: node["title"]}
        if "required" in node:
            made["required"] = node["required"]
        if self._cel and (rules := rules_of(node["title"])):
            made["x-kubernetes-validations"] = rules
        if node["title"] in _FORMERLY_FREE:
            made.pop("required", None)
            made["x-kubernetes-preserve-unknown-fields"] = True
        made["properties"] = {name: self._convert(value, name) for name, value in node["properties"].items()}
        return made

    def _description(self, node: Schema) -> tuple[str, str]:
        """First paragraph of a docstring as a sentence, and the default."""
        words = " ".join(node.get("description", "").split("\n\n")[0].split())
        default = node.get("default")
        if not self._authored or default is None or isinstance(default, dict) or default == []:
            return words, ""
        stop = "" if not words or words.endswith((".", "?", "!")) else "."
        return f"{words}{stop}", f"Default: {json.dumps(default)}."
