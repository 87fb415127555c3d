"""Seals a job's ConfigMap by an HMAC of its content with the operator's key, in an annotation.

The ConfigMap is in the job's namespace, where users may write it, and pods are made of what it holds. One without our
seal is checked as a spec is.
"""

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.rules.engines.generator import pods_per_replica
from rlhf_api.rules.pods.settings import pods

from ...job.snapshot import Job
from ..config.limits import Limits
from .limit_checks import check
from .pinned import Pinned, UnreadableConfig

SEAL = "rlhf.dev/seal"
"""Annotation of a ConfigMap."""


def sealed(config_map: Mapping[str, Any], key: bytes, job: Job) -> dict[str, Any]:
    annotations = {SEAL: _seal(config_map, key, job)}
    return {**config_map, "metadata": {**config_map["metadata"], "annotations": annotations}}


def is_sealed(config_map: Mapping[str, Any], keys: Iterable[bytes], job: Job) -> bool:
    """True if one of the keys has sealed this content, for this job and under this name."""
    seal = str((config_map["metadata"].get("annotations") or {}).get(SEAL, ""))
    return any(hmac.compare_digest(seal.encode(), _seal(config_map, key, job).encode()) for key in keys)


def check_unsealed(pinned: Pinned, limits: Limits | None, own_image: str) -> None:
    """Checks the pods of a configuration that another release may have written, or a user.

    Raises:
        UnreadableConfig: they may not be made.
    """
    problems = [*pods(pinned.config.spec), *pods_per_replica(pinned.config.spec)]
    try:
        if not problems:
            check(limits, pinned, own_image)
    except InvalidJob as error:
        problems += error.problems
    if problems:
        message = "; ".join(map(str, problems))
        raise UnreadableConfig(f"ConfigMap {pinned.name}, which lacks the operator's seal: {message}")


def _seal(config_map: Mapping[str, Any], key: bytes, job: Job) -> str:
    content = [job.uid, config_map["metadata"]["name"], config_map.get("data") or {}]
    return hmac.new(key, b"seal\n" + json.dumps(content, sort_keys=True).encode(), hashlib.sha256).hexdigest()
