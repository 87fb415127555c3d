"""A run's needs: GPU time, cost, seconds of a step and memory of a trainer's GPU, foreseen and measured."""

import json
from collections.abc import Sequence
from math import isfinite
from statistics import median
from typing import Any

from rlhf_api.contract.status import JobStatus
from rlhf_api.estimate.resources import plan
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ..folder.run_folder import RunFolder


def describe_usage(run: RunFolder, status: JobStatus | None) -> dict[str, Any]:
    """Null for what the run has not left; seconds and memory are those of its steps but the first, which has one-time
    costs."""
    peak = max(_later(run.metrics.values("memory_peak_gigabytes")), default=None)
    seconds = _later(run.metrics.values("seconds"))
    return {
        "gpuSeconds": status.gpu_seconds if status else None,
        "cost": status.cost if status else None,
        "costPerHour": status.cost_per_hour if status else None,
        "stepSeconds": median(seconds) if seconds else None,
        "memoryPeak": peak,
        "memoryForeseen": None if peak is None else _foresee_memory(run, status),
    }


def _later(values: Sequence[float]) -> list[float]:
    finite = [value for value in values if isfinite(value)]
    return finite[1:] or finite


def _foresee_memory(run: RunFolder, status: JobStatus | None) -> str | None:
    """The memory of a trainer's GPU with its arithmetic, by the status of a cluster's job or else by the manifest."""
    plans = status.plan if status else {}
    try:
        plans = plans or plan(Spec.model_validate_json(json.dumps(run.spec()), extra="ignore"))
    except ValueError:  # of another release
        return None
    return plans[Role.TRAINER].memory if Role.TRAINER in plans else None
