"""Objects without the fields that no decision depends on: what is kept of each is small, whoever wrote it; pure."""

from collections.abc import Mapping
from typing import Any

from rlhf_api.contract.run import place_named
from rlhf_api.manifest.spec_size import CUT, cut
from rlhf_api.rules.pods.template import CONTAINER

from .names import (
    ATTEMPT,
    CHECKPOINT,
    INDEX,
    JOB,
    MANAGED_BY,
    ORIGIN,
    PRIORITY,
    QUEUE,
    RANK,
    ROLE,
)
from .pod_resources import only_devices

Body = dict[str, Any]

_OF_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
    "ownerReferences",
)
_LABELS = (JOB, MANAGED_BY, ROLE, INDEX, RANK, ATTEMPT, QUEUE, PRIORITY, ORIGIN)
REQUEST = 256
"""Maximum length of a checkpoint request that is compared, in characters; an annotation may have 256 KiB."""
_MOST = 32
"""Maximum number of finalizers, and of owners, that are kept."""
_OF_STATUS = {
    "resourceClaimStatuses": ("name", "resourceClaimName"),
    "conditions": ("type", "status", "reason", "message", "lastTransitionTime"),
    "initContainerStatuses": ("name", "state"),
    "containerStatuses": ("name", "containerID", "state", "lastState", "ready", "started", "restartCount"),
}


def trim(body: Mapping[str, Any]) -> Body:
    """The object without the fields that no decision depends on; the same for what was trimmed before."""
    if body["kind"] == "RLHFJob":
        return _job(body)
    if body["kind"] == "Pod":
        return _pod(body)
    metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
    return {**body, "metadata": metadata}


def _job(body: Mapping[str, Any]) -> Body:
    metadata = _metadata(body["metadata"]) | _only(body["metadata"], "generation")
    request = (body["metadata"].get("annotations") or {}).get(CHECKPOINT)
    if request is not None:
        metadata["annotations"] = {CHECKPOINT: request[:REQUEST]}
    return {**_only(cut(body), "apiVersion", "kind", "spec", "status", CUT), "metadata": metadata}


def _pod(body: Mapping[str, Any]) -> Body:
    spec: Mapping[str, Any] = body.get("spec", {})
    inits = [part for part in map(only_devices, spec.get("initContainers", ())) if part]
    status = _only(body.get("status", {}), "phase", "podIP", "startTime", "reason", "message")
    for field, keys in _OF_STATUS.items():
        if entries := body.get("status", {}).get(field):
            status[field] = [_only(entry, *keys) for entry in entries]
    return {
        **_only(body, "apiVersion", "kind"),
        "metadata": _metadata(body["metadata"]),
        "spec": {
            **_only(spec, "nodeName", "schedulingGates", "resourceClaims"),
            "containers": [part for part in map(_container, spec.get("containers", ())) if part],
            **({"initContainers": inits} if inits else {}),
        },
        "status": status,
    }


def _container(container: Mapping[str, Any]) -> Body:
    """Of a container beside those of processes, its devices alone."""
    if container["name"] == CONTAINER or place_named(container["name"]):
        return {**_only(container, "name", "ports"), **only_devices(container)}
    device_limits = only_devices(container)
    return {"name": container["name"], **device_limits} if device_limits else {}


def _metadata(metadata: Mapping[str, Any]) -> Body:
    """A tenant may write metadata of any size: of its maps the operator's own keys are kept, and the first items."""
    trimmed = _only(metadata, *_OF_METADATA)
    if labels := metadata.get("labels"):
        trimmed["labels"] = _only(labels, *_LABELS)
    for field in ("finalizers", "ownerReferences"):
        if field in trimmed:
            trimmed[field] = trimmed[field][:_MOST]
    return trimmed


def _only(body: Mapping[str, Any], *fields: str) -> Body:
    return {field: body[field] for field in fields if field in body}
