"""Generates the JSON schema of a manifest's file, for editors, from the models.

It takes what files may have beside the fields as they are: snake_case, variables, includes, nulls that remove what
those have, and DeepSpeed's `auto` and batching keys.
"""

import re
from typing import Any

from pydantic.alias_generators import to_snake

from ..errors.other_names import OWNED
from ..job import RLHFJob
from ..manifest.deepspeed_auto import AUTO, KEYS
from ..sections import deepspeed
from .descriptions import Described

Schema = dict[str, Any]
_VARIABLE: Schema = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:[^}]*)?\}"}
"""`${NAME}` and `${NAME:default}`, instead of any value that is not text."""
_NULL: Schema = {"type": "null"}
_AUTO: Schema = {"const": AUTO}
_INCLUDE: Schema = {
    "description": "Files that this one changes; paths are relative to it.",
    "type": "array",
    "items": {"type": "string"},
}


def manifest_schema() -> Schema:
    """JSON schema (draft 2020-12) of one file: a manifest, or a part that others include. Objects are closed;
    cross-field rules are left to `rlhf validate`."""
    made = RLHFJob.model_json_schema(schema_generator=Described)
    parts = made.pop("$defs")
    made["properties"]["include"] = _INCLUDE
    for part in (made, parts["Spec"], parts["Metadata"]):
        part.pop("required", None)  # an included file may set them
    counts = {key: {"type": "integer", "minimum": 1} for key in KEYS}
    others = {key: _AUTO for key in OWNED if key not in KEYS}
    parts["DeepSpeedConfig"]["properties"] |= counts | others
    written = {
        name: _as_written(part, [_VARIABLE, _NULL, _AUTO] if hasattr(deepspeed, name) else [_VARIABLE, _NULL])
        for name, part in parts.items()
    }
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **_as_written(made, [_VARIABLE, _NULL]), "$defs": written}


def _as_written(node: Any, instead: list[Schema]) -> Any:
    """The schema of a value as a file may have it; `instead`: schemas of what may replace a value that is not text."""
    if isinstance(node, list):
        return [_as_written(item, instead) for item in node]
    if not isinstance(node, dict):
        return node
    made = {
        key: {name: _as_written(below, instead) for name, below in value.items()}
        if key == "properties"
        else value
        if key in ("default", "enum", "required")
        else _as_written(value, instead)
        for key, value in node.items()
        if key != "title" or not isinstance(value, str)
    }
    fields = made.get("properties", {})
    former = {name: fields.pop(name) for name in [*fields] if fields[name].get("deprecated")}
    # As fields are named: to_snake would part figures from letters.
    snake = {re.sub("(?=[A-Z])", "_", name).lower(): name for name in fields if name != name.lower()}
    former |= {to_snake(name): field for name, field in former.items()}
    if other_names := former | {key: fields[name] for key, name in snake.items()}:
        # As patterns, which editors accept and do not offer.
        made["patternProperties"] = {f"^{key}$": field for key, field in other_names.items()}
        made["required"] = [name for name in made.get("required", ()) if name not in snake.values()]
    kind = made.get("type")
    if "const" in made or "enum" in made or kind in ("integer", "number", "boolean") or "pattern" in made:
        annotations = {key: made.pop(key) for key in ("description", "default", "deprecated") if key in made}
        return {**annotations, "anyOf": [made, *instead]}
    if kind in ("object", "array", "string"):
        made["type"] = [kind, "null"]
    return made
