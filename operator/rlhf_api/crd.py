"""The CustomResourceDefinition of RLHFJob, made from the models.

python -m rlhf_api.crd > crds/rlhfjobs.rlhf.dev.yaml

The schema says what the models say, as far as a structural schema can. It sets no defaults, so that a stored
object stays what its author wrote (a role's pods override the job's only where they say something) and a later
release may change them; each description names its default instead. The one exception is
`spec.generator.replicas`, which `kubectl scale` can only read where it is stored. Objects are closed: a misspelt
key is refused by kubectl, whose validation reads this schema, and dropped by the server for other clients. Every
string, list and map is bounded (`bounds`). A model that stands in several places describes its fields in one, and
the file writes a subtree that stands in several places once, as a YAML anchor.
"""

import json
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from . import bounds
from .cel import RULES
from .manifest import API_VERSION, KIND, Metadata, RLHFJob
from .spec import Spec
from .status import JobStatus

Schema = dict[str, Any]

PLURAL = "rlhfjobs"
GROUP, VERSION = API_VERSION.split("/")

_COLUMNS = (
    # name, type, path, priority
    ("Phase", "string", ".status.phase", 0),
    ("Step", "string", ".status.progress", 0),
    ("Reward", "number", ".status.reward", 0),
    ("KL", "number", ".status.kl", 0),
    ("Weights", "integer", ".status.weightVersion", 0),
    ("Gen", "string", ".status.generatorsReady", 0),
    ("Restarts", "integer", ".status.restarts", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("Staleness", "number", ".status.staleness", 1),
    ("Tokens/s", "number", ".status.tokensPerSecond", 1),
    ("Queue", "integer", ".status.queue", 1),
    ("Message", "string", ".status.message", 1),
)
_SELECTABLE = (".spec.algorithm", ".spec.suspend", ".status.phase")
"""Fields that `kubectl get --field-selector` and watches can ask for."""
_KEPT = ("type", "enum", "pattern", "minLength", "maxLength", "minItems", "maxItems", "maxProperties")
_BOUNDS = {
    "string": {"maxLength": bounds.TEXT},
    "array": {"maxItems": bounds.ITEMS},
    "object": {"maxProperties": bounds.KEYS},
}
_LIST_KEYS = {"conditions": ["type"], "volumes": ["name"]}
"""Lists whose items have a key: two clients may each apply their own, and the server refuses a key given twice."""
_WIDTH = 200
_SHARED = 400
"""Subtrees of so many characters, as JSON, are written once."""
_MODEL = "title"
"""The key under which a schema has its model's name until `_describe_once`."""


def crd(minor: int = 37) -> Schema:
    """The object to install on a server of Kubernetes 1.`minor`.

    CEL rules are left out before 1.25 and selectable fields before 1.30, which do not know them.
    """
    scale = {
        "specReplicasPath": ".spec.generator.replicas",
        "statusReplicasPath": ".status.generatorReplicas",
        "labelSelectorPath": ".status.selector",
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["rlhf"],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(cel=minor >= 25)},
                    "subresources": {"status": {}, "scale": scale},
                    **({"selectableFields": [{"jsonPath": at} for at in _SELECTABLE]} if minor >= 30 else {}),
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, priority: int) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _root(*, cel: bool) -> Schema:
    spec = _Structural(Spec, cel=cel).root
    generator = spec["properties"]["generator"]
    generator["default"] = {}
    generator["properties"]["replicas"]["default"] = 1
    properties: Schema = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        # All that a schema may say of metadata is about the name.
        "metadata": {
            "type": "object",
            "properties": {"name": _Structural(Metadata, cel=cel).root["properties"]["name"]},
        },
        "spec": spec,
        "status": _Structural(JobStatus, cel=cel, authored=False).root,
    }
    root: Schema = {"type": "object", "description": (RLHFJob.__doc__, ""), "required": ["spec"]}
    if cel:
        root["x-kubernetes-validations"] = _rules("RLHFJob")
    root["properties"] = properties
    _describe_once(root)
    return root


def _rules(model: str) -> list[Schema]:
    return [{"rule": rule.rule, "message": rule.message} for rule in RULES.get(model, ())]


def _describe_once(root: Schema) -> None:
    """Takes out the models' names, and says once what several places would say, in the uppermost or first of them.

    A field of the same name and words elsewhere, such as one of a common base, keeps its default alone; fields inside
    of a model that stands elsewhere keep nothing.
    """
    seen, queue = set[str | tuple[str, str]](), deque([("", root)])
    while queue:
        key, node = queue.popleft()
        words, default = node.get("description", ("", ""))
        if (key, words) in seen and "properties" not in node:
            words = ""
        seen.add((key, words))
        node["description"] = " ".join(part for part in (words, default) if part)
        if not node["description"]:
            del node["description"]
        model = node.pop(_MODEL, None)
        if model in seen:
            _describe_nothing(node)
        elif model:
            seen.add(model)
        queue.extend(_inner(node))


def _describe_nothing(node: Schema) -> None:
    for _, inner in _inner(node):
        inner.pop("description", None)
        _describe_nothing(inner)


def _inner(node: Schema) -> Iterator[tuple[str, Schema]]:
    yield from node.get("properties", {}).items()
    yield from (("", node[key]) for key in ("items", "additionalProperties") if key in node)


class _Structural:
    """Pydantic's JSON schema of a model as a structural one: no references, no alternatives.

    Of an object that users do not author (`status`) it gives neither defaults nor the bounds of numbers, which the
    operator alone writes.
    """

    def __init__(self, model: type[BaseModel], *, cel: bool, authored: bool = True) -> None:
        schema = model.model_json_schema()
        self._models = schema.get("$defs", {})
        self._cel = cel
        self._authored = authored
        self.root = self._convert(schema)

    def _convert(self, node: Schema, key: str = "") -> Schema:
        if "$ref" in node:
            return self._reference(node, key)
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
        if "enum" not in node and "properties" not in node:
            for name, most in _BOUNDS.get(node["type"], {}).items():
                made.setdefault(name, most)
        return made

    def _reference(self, node: Schema, key: str) -> Schema:
        """The model in place; what the field says of it goes before what it says of itself."""
        model = self._models[node["$ref"].removeprefix("#/$defs/")]
        return self._convert(
            {**model, **{name: node[name] for name in ("description", "default") if name in node}}, key
        )

    def _optional(self, node: Schema, key: str) -> Schema:
        """A nullable field as its type alone: null means the same as nothing, and kubectl drops it."""
        (kind,) = (kind for kind in node["anyOf"] if kind != {"type": "null"})
        return self._convert(
            {**kind, **{name: value for name, value in node.items() if name != "anyOf"}}, key
        )

    def _map(self, node: Schema) -> Schema:
        values = node["additionalProperties"]
        if values == {"$ref": "#/$defs/JsonValue"}:
            return {"x-kubernetes-preserve-unknown-fields": True}
        return {"additionalProperties": self._convert(values)}

    def _object(self, node: Schema) -> Schema:
        made: Schema = {_MODEL: node["title"]}
        if "required" in node:
            made["required"] = node["required"]
        if self._cel and (rules := _rules(node["title"])):
            made["x-kubernetes-validations"] = rules
        made["properties"] = {name: self._convert(value, name) for name, value in node["properties"].items()}
        return made

    def _description(self, node: Schema) -> tuple[str, str]:
        """The first paragraph of a docstring as a sentence, and the default."""
        words = " ".join(node.get("description", "").split("\n\n")[0].split())
        default = node.get("default")
        if not self._authored or default is None or isinstance(default, dict) or default == []:
            return words, ""
        stop = "" if not words or words.endswith((".", "?", "!")) else "."
        return f"{words}{stop}", f"Default: {json.dumps(default)}."


class _Dumper(yaml.SafeDumper):
    """Short mappings and rules stand on one line: indentation would be a quarter of the file."""

    def represent_mapping(self, tag: str, mapping: Any, *_: Any, **__: Any) -> yaml.MappingNode:
        short = "rule" in mapping or len(json.dumps(mapping)) <= _WIDTH
        return super().represent_mapping(tag, mapping, flow_style=short)

    def ignore_aliases(self, data: Any) -> bool:
        return not isinstance(data, dict) or len(json.dumps(data)) < _SHARED


def _interned(node: Any, known: dict[str, Any]) -> Any:
    """The same tree with equal subtrees as one object, which `_Dumper` writes once."""
    if isinstance(node, dict):
        made = {key: _interned(value, known) for key, value in node.items()}
        return known.setdefault(json.dumps(made), made)
    return [_interned(item, known) for item in node] if isinstance(node, list) else node


def document(minor: int = 37) -> str:
    """The definition as YAML, with equal subtrees written once."""
    head = "# Made by `python -m rlhf_api.crd`; a test keeps it in step with the models.\n"
    tree = _interned(crd(minor), {})
    return head + yaml.dump(tree, Dumper=_Dumper, sort_keys=False, width=2**31, default_flow_style=None)


if __name__ == "__main__":
    sys.stdout.write(document())
