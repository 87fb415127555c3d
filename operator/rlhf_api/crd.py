"""The CustomResourceDefinition of RLHFJob, made from the models.

python -m rlhf_api.crd > crds/rlhfjobs.rlhf.dev.yaml

The schema says what the models say, as far as a structural schema can. It sets no defaults, so that a stored
object stays what its author wrote (a role's pods override the job's only where they say something) and a later
release may change them; each description names its default instead. The one exception is
`spec.generator.replicas`, which `kubectl scale` can only read where it is stored. Objects are closed: a misspelt
key is refused by kubectl, whose validation reads this schema, and dropped by the server for other clients.
"""

import json
import sys
from typing import Any

import yaml
from pydantic import BaseModel

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
_KEPT = ("type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_LIST_KEYS = {"conditions": ["type"], "volumes": ["name"]}
"""Lists whose items have a key: two clients may each apply their own, and the server refuses a key given twice."""


def crd(*, cel: bool = True) -> Schema:
    """The object to install; without CEL rules for servers before 1.25, which do not know them."""
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
                    "schema": {"openAPIV3Schema": _root(cel)},
                    "subresources": {"status": {}, "scale": scale},
                    "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
                }
            ],
        },
    }


def _column(name: str, kind: str, path: str, priority: int) -> Schema:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _root(cel: bool) -> Schema:
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
        "status": _Structural(JobStatus, cel=cel, defaults=False).root,
    }
    return {"type": "object", "description": RLHFJob.__doc__, "required": ["spec"], "properties": properties}


class _Structural:
    """Pydantic's JSON schema of a model as a structural one: no references, no alternatives."""

    def __init__(self, model: type[BaseModel], *, cel: bool, defaults: bool = True) -> None:
        schema = model.model_json_schema()
        self._models = schema.get("$defs", {})
        self._cel = cel
        self._defaults = defaults
        self.root = self._convert(schema)

    def _convert(self, node: Schema, key: str = "") -> Schema:
        if "$ref" in node:
            return self._reference(node, key)
        if "anyOf" in node:
            return self._optional(node, key)
        made: Schema = {"description": text} if (text := self._description(node)) else {}
        made |= {name: node[name] for name in _KEPT if name in node}
        for bound in ("minimum", "maximum"):
            exclusive = f"exclusive{bound.capitalize()}"
            if exclusive in node:
                made |= {bound: node[exclusive], exclusive: True}
        if node["type"] == "array":
            made["items"] = self._convert(node.get("items") or node["prefixItems"][0])
            if key in _LIST_KEYS:
                made |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": _LIST_KEYS[key]}
        if node["type"] == "object":
            made |= self._object(node) if "properties" in node else self._map(node)
        return made

    def _reference(self, node: Schema, key: str) -> Schema:
        """The model in place; what the field says of it goes before what it says of itself."""
        model = self._models[node["$ref"].removeprefix("#/$defs/")]
        return self._convert(
            {**model, **{name: node[name] for name in ("description", "default") if name in node}}, key
        )

    def _optional(self, node: Schema, key: str) -> Schema:
        """What may be null. A null always says the same as nothing, so the server may drop it, as kubectl does."""
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
        made: Schema = {"required": node["required"]} if "required" in node else {}
        if self._cel and (rules := RULES.get(node["title"])):
            made["x-kubernetes-validations"] = [{"rule": r.rule, "message": r.message} for r in rules]
        made["properties"] = {name: self._convert(value, name) for name, value in node["properties"].items()}
        return made

    def _description(self, node: Schema) -> str:
        """The first paragraph of a docstring, with the default."""
        text = " ".join(node.get("description", "").split("\n\n")[0].split())
        default = node.get("default")
        if not self._defaults or default is None or isinstance(default, dict) or default == []:
            return text
        separator = " " if text.endswith((".", "?", "!")) else ". "
        return f"{text}{separator if text else ''}Default: {json.dumps(default)}."


def document(*, cel: bool = True) -> str:
    """As a file."""
    head = "# Made by `python -m rlhf_api.crd`; a test keeps it in step with the models.\n"
    return head + yaml.safe_dump(crd(cel=cel), sort_keys=False, width=120, default_flow_style=None)


if __name__ == "__main__":
    sys.stdout.write(document())
