"""RLHFJob manifests: read, overridden, checked."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from .base import Frozen, JobName
from .bounds import oversized
from .checks import check
from .document import documents, not_json
from .problems import InvalidJob, Problem, from_pydantic, show
from .spec import Spec

API_VERSION = "rlhf.dev/v1alpha1"
KIND = "RLHFJob"


class Metadata(Frozen):
    """The metadata that this contract reads; a cluster adds more."""

    name: JobName
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class RLHFJob(Frozen):
    """An RLHF run as one resource."""

    api_version: Literal["rlhf.dev/v1alpha1"]
    kind: Literal["RLHFJob"]
    metadata: Metadata
    spec: Spec


def parse(document: Any) -> RLHFJob:
    """A checked job from a manifest's document.

    Raises:
        InvalidJob: with every problem found, each naming its field.
    """
    if not isinstance(document, Mapping):
        raise InvalidJob([Problem("manifest", f"must be one {KIND} object; got {show(document)}")])
    if problems := list(not_json(document)):
        raise InvalidJob(problems)
    try:
        # Through JSON: strict types, and lists where the models hold tuples, as an API server would see it.
        job = RLHFJob.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise from_pydantic(error, RLHFJob) from None
    problems = [*oversized(job.spec, "spec"), *check(job.spec)]
    if problems:
        raise InvalidJob(problems)
    return job


def from_cluster(body: Mapping[str, Any]) -> RLHFJob:
    """A checked job from an object as an API server returns it: its status, and what a cluster adds to metadata, are
    left out.

    Raises:
        InvalidJob: with every problem found, each naming its field.
    """
    known = {field.alias or name for name, field in Metadata.model_fields.items()}
    made = {key: value for key, value in body.items() if key != "status"}
    if isinstance(metadata := body.get("metadata"), Mapping):
        made["metadata"] = {key: value for key, value in metadata.items() if key in known}
    return parse(made)


def load(file: Path, overrides: Iterable[str] = ()) -> RLHFJob:
    """A checked job from a YAML file, with `spec.path=value` overrides applied first.

    Raises:
        InvalidJob: the file cannot be read, is no YAML, or holds no valid job.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidJob([Problem(str(file), f"cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError:
        raise InvalidJob([Problem(str(file), "is not UTF-8 text")]) from None
    found = documents(text, str(file))
    if len(found) != 1:
        raise InvalidJob([Problem(str(file), f"must hold one {KIND}; it holds {len(found)} documents")])
    document = found[0]
    for override in overrides:
        document = apply_override(document, override)
    return parse(document)


def apply_override(document: Any, override: str) -> Any:
    """The document with `path.to.field=value` set, the value read as YAML; lists take an index as `[i]`.

    Raises:
        InvalidJob: the override has no `=`, or its path goes through something that is no object.
    """
    where, equals, text = override.partition("=")
    keys = where.replace("[", ".[").split(".")
    if not equals or not all(keys):
        raise InvalidJob(
            [Problem("--set", f"must be path=value, such as spec.ppo.klCoefficient=0.1; got {override!r}")]
        )
    values = documents(text, f"--set {where}")
    value = values[0] if values else None
    return _set(document, keys, value, where)


def _set(node: Any, keys: list[str], value: Any, where: str) -> Any:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    if key.startswith("["):
        index = key[1:-1]
        if not (key.endswith("]") and index.isdigit() and isinstance(node, list) and int(index) < len(node)):
            raise InvalidJob([Problem(f"--set {where}", f"{key} is no place in {show(node)}")])
        return [_set(item, rest, value, where) if i == int(index) else item for i, item in enumerate(node)]
    if node is not None and not isinstance(node, Mapping):
        raise InvalidJob([Problem(f"--set {where}", f"{key!r} is no field of {show(node)}")])
    base = dict(node or {})
    return {**base, key: _set(base.get(key), rest, value, where)}
