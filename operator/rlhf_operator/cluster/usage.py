"""GPU-hours and cost of a job, summed up in its status from one look to the next; pure."""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.resources import gpu_of
from rlhf_api.run import roles_of
from rlhf_api.spec import Spec
from rlhf_api.status import JobStatus

from ..job_status import time_text
from .snapshot import Pod

_DIGITS = 6
"""Of what is summed up: a second of one GPU is 0.000278 hours."""


def held(pods: Sequence[Pod], spec: Spec) -> Counter[str]:
    """GPUs by resource name of pods that have a node, until all their containers have ended."""
    found, roles = Counter[str](), roles_of(spec)
    for pod in pods:
        if pod.node and not pod.over and pod.role in roles and (gpu := gpu_of(spec, pod.role)) is not None:
            found[gpu.resource] += gpu.count
    return found


def cost_per_hour(gpus: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """Of `gpus`, by resource name; None where none of them has a price. `prices`: of a GPU for an hour."""
    priced = [count * prices[resource] for resource, count in gpus.items() if resource in prices]
    return round(sum(priced), _DIGITS) if priced else None


def used(before: JobStatus, now: datetime.datetime) -> dict[str, Any]:
    """Fields of the status: GPU-hours and cost with what was held since they were last counted, at the price of then.
    A status that was not written is no loss: the next look counts from the last one that was."""
    stamp, since = time_text(now), before.usage_time
    fields: dict[str, Any] = {"usage_time": stamp}
    if before.gpus and since is not None:
        # Between two times that were both cut to the second: what is lost of one is had by the next.
        passed = datetime.datetime.fromisoformat(stamp) - datetime.datetime.fromisoformat(since)
        hours = max(passed.total_seconds(), 0) / 3600
        fields["gpu_hours"] = round((before.gpu_hours or 0) + before.gpus * hours, _DIGITS)
        if before.cost_per_hour is not None:
            fields["cost"] = round((before.cost or 0) + before.cost_per_hour * hours, _DIGITS)
    return fields
