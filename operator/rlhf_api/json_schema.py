"""Generates the JSON schema of a manifest's file, for editors, from the models."""

from typing import Any

from .manifest import RLHFJob

Schema = dict[str, Any]
_VARIABLE: Schema = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:[^}]*)?\}"}
"""`${NAME}` and `${NAME:default}`, instead of any value that is not text."""
_TEXT = {"type": ["string", "number", "boolean"]}
"""A value of a map of texts; quotes are optional."""
_INCLUDE: Schema = {
    "description": "Files that this one changes; paths are relative to it.",
    "type": "array",
    "items": {"type": "string"},
}


def manifest_schema() -> Schema:
    """JSON schema (draft 2020-12) of one file: a manifest, or a part that others include. Objects are closed;
    cross-field rules are left to `rlhf validate`."""
    made = _as_written(RLHFJob.model_json_schema(by_alias=True))
    made["properties"]["include"] = _INCLUDE
    for part in (made, made["$defs"]["Spec"], made["$defs"]["Metadata"]):
        part.pop("required", None)  # an included file may set them
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _as_written(node: Any) -> Any:
    if isinstance(node, list):
        return [_as_written(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {
        key: {name: _as_written(below) for name, below in value.items()}
        if key in ("properties", "$defs")
        else value
        if key in ("default", "enum", "required")
        else _as_written(value)
        for key, value in node.items()
        if key != "title" or not isinstance(value, str)
    }
    if made.get("additionalProperties") == {"type": "string"}:
        return {**made, "additionalProperties": _TEXT}
    kind = made.get("type")
    if "const" in made or "enum" in made or kind in ("integer", "number", "boolean") or "pattern" in made:
        said = {key: made.pop(key) for key in ("description", "default") if key in made}
        return {**said, "anyOf": [made, _VARIABLE]}
    return made
