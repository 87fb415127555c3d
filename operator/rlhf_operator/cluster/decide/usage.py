"""Accumulates a job's GPU-seconds and cost in its status, from one reconcile to the next; pure."""

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_api.contract.run import pod_roles
from rlhf_api.contract.status import JobStatus
from rlhf_api.contract.teachers import view_of
from rlhf_api.estimate.resources import gpu_of
from rlhf_api.spec import Spec

from ...console.text import time_text
from ...job.pod_resources import is_gpu
from ...job.snapshot import Pod

_DIGITS = 6
"""Decimal digits of costs."""


def count_gpus(pods: Sequence[Pod], spec: Spec, prices: Mapping[str, float]) -> Counter[str]:
    """GPUs by resource name held by scheduled pods until all their containers have ended: however the pods came to ask
    for them, by `pods.gpu`, resources or a template. `prices`: any resource that has a price counts as GPUs."""
    counts, roles = Counter[str](), pod_roles(spec)
    for pod in pods:
        if pod.node and not pod.over:
            gpu = gpu_of(view_of(spec, pod.role, pod.index), pod.role)
            named = {*prices, *([gpu.resource] if gpu else [])}
            if gpu is not None and gpu.device_class is not None and pod.role in roles:
                counts[gpu.device_class] += gpu.count
            for name, count in pod.devices:
                counts[name] += count if name in named or is_gpu(name) else 0
    return +counts


def cost_per_hour(gpus: Mapping[str, int], prices: Mapping[str, float]) -> float | None:
    """Cost per hour of `gpus`, by resource name; None if none has a price. `prices`: per GPU hour."""
    priced = [count * prices[resource] for resource, count in gpus.items() if resource in prices]
    return round(sum(priced), _DIGITS) if priced else None


def count_usage(
    before: JobStatus, pods: Sequence[Pod], spec: Spec, prices: Mapping[str, float], now: datetime.datetime
) -> dict[str, Any]:
    """Fields of the status: GPUs that the pods hold now, and what has been used up to now."""
    gpus = count_gpus(pods, spec, prices)
    fields = {"gpus": gpus.total(), "cost_per_hour": cost_per_hour(gpus, prices)}
    return fields | (add_usage(before, now) if gpus or before.gpus else {})


def stop_counting(before: JobStatus, pods: Sequence[Pod], now: datetime.datetime) -> dict[str, Any]:
    """As `count_usage`, if the spec that the pods were made of cannot be read any more: all GPUs count until the last
    pod is over."""
    if not before.gpus:
        return {}
    none_left = {} if any(not pod.over for pod in pods) else {"gpus": 0, "cost_per_hour": None}
    return add_usage(before, now) | none_left


def add_usage(before: JobStatus, now: datetime.datetime) -> dict[str, Any]:
    """Status fields: GPU-seconds and cost since the last count, for the GPUs held and at the prices of then. If the
    status cannot be written, the next reconcile counts from the last one written."""
    stamp, since = time_text(now), before.usage_time
    fields: dict[str, Any] = {"usage_time": stamp}
    if before.gpus and since is not None:
        # Both times are cut to whole seconds: the fraction lost in one interval is in the next.
        passed = datetime.datetime.fromisoformat(stamp) - datetime.datetime.fromisoformat(since)
        seconds = max(round(passed.total_seconds()), 0)
        fields["gpu_seconds"] = (before.gpu_seconds or 0) + before.gpus * seconds
        if before.cost_per_hour is not None:
            fields["cost"] = round((before.cost or 0) + before.cost_per_hour * seconds / 3600, _DIGITS)
    return fields
