"""Strategic merge of pod templates, as `kubectl patch` does it: lists of named items are merged by key.

Source: Kubernetes API conventions, "Strategic Merge Patch"; the keys are those of core/v1's `patchMergeKey`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
    "schedulingGates": "name",
}
DIRECTIVE = "$patch"


def merge(base: Any, patch: Any, field: str = "") -> Any:
    """Merges `patch` over `base`. null removes a key; `$patch: replace` and `$patch: delete` work as in kubectl."""
    if isinstance(patch, Mapping) and isinstance(base, Mapping):
        if patch.get(DIRECTIVE) == "replace":
            return _plain(patch)
        merged = dict(base)
        for key, value in patch.items():
            if value is None:
                merged.pop(key, None)
            elif key in merged:
                merged[key] = merge(merged[key], value, key)
            else:
                merged[key] = _plain(value)
        return merged
    if _named(base, field) and _named(patch, field):
        return _merge_named(base, patch, MERGE_KEYS[field])
    return _plain(patch)


def _named(value: Any, field: str) -> bool:
    """True for a list whose items have the field's merge key, or a directive."""
    key = MERGE_KEYS.get(field)
    if key is None or not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return all(isinstance(item, Mapping) and (key in item or DIRECTIVE in item) for item in value)


def _merge_named(base: Sequence[Any], patch: Sequence[Any], key: str) -> list[Any]:
    if any(item.get(DIRECTIVE) == "replace" for item in patch):
        return [_plain(item) for item in patch if key in item]
    merged = {item[key]: item for item in base}
    for item in patch:
        if item.get(DIRECTIVE) == "delete":
            merged.pop(item.get(key), None)
        else:
            merged[item[key]] = merge(merged.get(item[key], {}), item)
    return list(merged.values())


def _plain(value: Any) -> Any:
    """The value without merge directives and nulls, which have a meaning only over a base."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if k != DIRECTIVE and v is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
