"""The CEL rules of the CRD as a server runs them: on the typed object, null the same as missing."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import celpy
from celpy import celtypes

from rlhf_api.schema.crd import crd

ROOT: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC: dict[str, Any] = ROOT["properties"]["spec"]
_SCALARS = {
    "string": celtypes.StringType,
    "integer": celtypes.IntType,
    "number": celtypes.DoubleType,
    "boolean": celtypes.BoolType,
}


def refusals(spec: Any, before: Any = None, status: Any = None) -> list[str]:
    """The messages of the rules that refuse `spec`, or its change from `before` in a job of this status."""
    old = None if before is None else _job(before, status)
    return list(_refused(_job(spec, status), old, ROOT))


@cache
def program(rule: str) -> celpy.Runner:
    environment = celpy.Environment()
    return environment.program(environment.compile(rule))


def _job(spec: Any, status: Any) -> Any:
    """With the one default that the schema sets."""
    stored = {**spec, "generator": {"replicas": 1, **(spec.get("generator") or {})}}
    return _typed({"spec": stored, "status": status}, ROOT)


def _typed(value: Any, schema: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "array":
        return celtypes.ListType([_typed(item, schema["items"]) for item in value])
    if kind == "object" and "properties" in schema:
        known = {k: v for k, v in value.items() if k in schema["properties"] and v is not None}
        return celtypes.MapType(
            {celtypes.StringType(k): _typed(v, schema["properties"][k]) for k, v in known.items()}
        )
    if kind == "object" and "additionalProperties" in schema:
        inner = schema["additionalProperties"]
        return celtypes.MapType({celtypes.StringType(k): _typed(v, inner) for k, v in value.items()})
    return _SCALARS[kind](value) if kind in _SCALARS else celpy.json_to_cel(value)


def _refused(value: Any, old: Any, schema: dict[str, Any]) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        changes = "oldSelf" in rule["rule"]
        if changes and old is None:
            continue
        if not program(rule["rule"]).evaluate({"self": value, **({"oldSelf": old} if changes else {})}):
            yield rule["message"]
    if isinstance(value, celtypes.MapType):
        for key, inner in schema.get("properties", {}).items():
            if key in value:
                before = old[key] if isinstance(old, celtypes.MapType) and key in old else None
                yield from _refused(value[key], before, inner)
    elif isinstance(value, celtypes.ListType):
        for item in value:
            yield from _refused(item, None, schema["items"])
