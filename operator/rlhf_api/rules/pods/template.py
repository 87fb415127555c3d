"""Checks of a pod template override: parts that cannot be merged, or that the operator sets itself."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...contract.run import place_named
from ...errors.problem import Problem, first, path, show
from ..size_limits import KEYS

CONTAINER = "role"
"""The container that runs the role."""
_MERGE_KEYS = ("name", "mountPath", "devicePath", "containerPort", "ip", "topologyKey")
"""Merge keys of lists, by which strategic merge matches items."""
_METADATA = ("labels", "annotations")
_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/managed-by", "app.kubernetes.io/component")
_POD = ("restartPolicy", "hostname", "subdomain", "automountServiceAccountToken")
_APART = ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace")
"""Namespaces that pods of untrusted code may not share: no NetworkPolicy holds on a node's network, and who sees the
processes of a role reads its keys."""
_ROLE = ("command", "args", "workingDir", "ports", "terminationMessagePath", "terminationMessagePolicy")
_KEPT = ("containers", "initContainers", "volumes", "env", "volumeMounts")
"""Lists of the operator to which a template may add items, and whose items it may change."""
_NAMED = {"containers": f'; "{CONTAINER}" is the role\'s', "initContainers": "", "volumes": ""}
"""Lists whose items all need names, by which they are merged and reported."""
MOST_ITEMS = {"containers": 16, "initContainers": 16, "volumes": 64}
"""Maximum length of lists of a template: the chart's admission policy walks those of all templates of a job, in the API
server."""
_CREDENTIALS = ("serviceAccountToken", "podCertificate")
"""Sources of a projected volume."""
_OURS = "is the operator's to set; remove it"


def template_problems(
    where: str, template: Mapping[str, Any], *, is_untrusted: bool = False
) -> Iterator[Problem]:
    """Problems of the PodTemplateSpec at `where`; `is_untrusted`: of pods whose code need not be trusted."""
    shape_problems = first(_shape(where, template))
    yield from shape_problems or _contents(where, template)
    for key in _APART if is_untrusted and not shape_problems else ():
        if value := template.get("spec", {}).get(key):
            message = "would share what keeps pods of this role apart from all else; remove it"
            yield Problem(f"{where}.spec.{key}", f"{message}; got {show(value)}")


def _shape(where: str, template: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of parts of a template that strategic merge cannot apply."""
    yield from _not_mergeable(where, template)
    places = {"": template, ".metadata": template.get("metadata", {}), ".spec": template.get("spec", {})}
    if isinstance(metadata := places[".metadata"], Mapping):
        places |= {f".metadata.{key}": metadata.get(key, {}) for key in _METADATA}
    for place, value in places.items():
        if not isinstance(value, Mapping):
            yield Problem(f"{where}{place}", f"must be an object; got {show(value)}")
        elif "$patch" in value:
            yield Problem(f"{where}{place}.$patch", "would take away what the operator needs; remove it")
        elif place == ".metadata.annotations" and len(value) > KEYS:
            yield Problem(f"{where}{place}", f"must have at most {KEYS} keys; got {len(value)}")
    if not isinstance(places[".spec"], Mapping):
        return
    for key, more in _NAMED.items():
        items = places[".spec"].get(key, [])
        if not isinstance(items, list):
            yield Problem(
                f"{where}.spec.{key}", f"must be a list of what to add or change; got {show(items)}"
            )
            continue
        if len(items) > MOST_ITEMS[key]:
            message = f"must have at most {MOST_ITEMS[key]} items; got {len(items)}"
            yield Problem(f"{where}.spec.{key}", message)
            continue
        for i, item in enumerate(items):
            if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
                yield Problem(
                    f"{where}.spec.{key}[{i}]", f"must be an object with a name{more}; got {show(item)}"
                )


def _not_mergeable(where: str, node: Any) -> Iterator[Problem]:
    if isinstance(node, Mapping):
        if node.get("$patch", "replace") not in ("replace", "delete"):
            yield Problem(f"{where}.$patch", f"must be replace or delete; got {show(node['$patch'])}")
        for key, value in node.items():
            yield from _not_mergeable(f"{where}{_key(key)}", value)
    elif isinstance(node, list):
        for i, item in enumerate(node):
            for key in _MERGE_KEYS if isinstance(item, Mapping) else ():
                if not isinstance(item.get(key, ""), str | int):
                    yield Problem(f"{where}[{i}].{key}", f"must be text or a number; got {show(item[key])}")
            yield from _not_mergeable(f"{where}[{i}]", item)


def _contents(where: str, template: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of fields that the operator sets itself."""
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    yield from _only(where, template, ("metadata", "spec"))
    yield from _only(f"{where}.metadata", metadata, _METADATA)
    for label in metadata.get("labels", {}):
        if label in _LABELS or label.startswith("rlhf.dev/"):
            yield Problem(f"{where}.metadata.labels{_key(label)}", _OURS)
    yield from _owned(f"{where}.spec", spec, _POD)
    if "nodeName" in spec:
        message = "would skip the scheduler, its gangs and the node's taints; use nodeSelector or affinity"
        yield Problem(f"{where}.spec.nodeName", message)
    yield from _tokens(f"{where}.spec", spec)
    for i, container in enumerate(spec.get("containers", [])):
        place = f"{where}.spec.containers[{i}]"
        if place_named(container["name"]):
            message = f"is the name of a process of the job; use another one; got {show(container['name'])}"
            yield Problem(f"{place}.name", message)
        if container["name"] != CONTAINER:
            continue
        yield from _owned(place, container, _ROLE)
        if "$patch" in container:
            yield Problem(f"{place}.$patch", "would take away what the operator needs; remove it")
        environment = container.get("env")
        for j, variable in enumerate(environment if isinstance(environment, list) else []):
            if isinstance(variable, Mapping) and str(variable.get("name", "")).startswith("RLHF_"):
                yield Problem(
                    f"{place}.env[{j}].name", "names that begin with RLHF_ are reserved; use another name"
                )


def _tokens(where: str, spec: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems of volumes that would give the pod its identity's credentials, which no pod of a job has."""
    for i, volume in enumerate(spec.get("volumes", [])):
        projected = volume.get("projected")
        sources = projected.get("sources") if isinstance(projected, Mapping) else None
        for j, source in enumerate(sources if isinstance(sources, list) else []):
            for kind in _CREDENTIALS if isinstance(source, Mapping) else ():
                if kind in source:
                    place = f"{where}.volumes[{i}].projected.sources[{j}].{kind}"
                    yield Problem(place, "pods of jobs get no credentials of the API server; remove it")


def _only(where: str, node: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[Problem]:
    for key in node:
        if key not in keys:
            yield Problem(f"{where}{_key(key)}", f"a template sets {' and '.join(keys)} here; remove it")


def _owned(where: str, node: Mapping[str, Any], keys: tuple[str, ...]) -> Iterator[Problem]:
    for key in node:
        if key in keys:
            yield Problem(f"{where}{_key(key)}", _OURS)
        elif key in _KEPT and (not isinstance(node[key], list) or _replaces(node[key])):
            yield Problem(
                f"{where}{_key(key)}", f"must be a list of what to add or change; got {show(node[key])}"
            )


def _replaces(items: list[Any]) -> bool:
    return any(isinstance(item, Mapping) and item.get("$patch") == "replace" for item in items)


def _key(key: str) -> str:
    """A key as part of a path."""
    text = path((key,))
    return text if text.startswith("[") else f".{text}"
