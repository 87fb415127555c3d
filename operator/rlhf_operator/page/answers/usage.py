"""A run's needs: GPU time, cost, seconds of a step and memory of a trainer's GPU, predicted and measured."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median
from typing import Any

from rlhf_api.contract.prediction import FILE, Prediction
from rlhf_api.contract.status import JobStatus
from rlhf_api.estimate.duration import PHASES
from rlhf_api.estimate.resources import plan
from rlhf_api.spec import Spec

from ..folder.run_folder import RunFolder

_MOST_BYTES = 64 << 10


def describe_usage(run: RunFolder, status: JobStatus | None) -> dict[str, Any]:
    """Null for what the run has not left; seconds and memory are those of its steps but the first, which has one-time
    costs."""
    peak = max(_later(run.metrics.values("memory_peak_gigabytes")), default=None)
    seconds = _later(run.metrics.values("seconds"))
    predicted = _read_prediction(run)
    has_seconds = predicted.step is not None
    return {
        "gpuSeconds": status.gpu_seconds if status else None,
        "cost": status.cost if status else None,
        "costPerHour": status.cost_per_hour if status else None,
        "stepSeconds": median(seconds) if seconds else None,
        "phaseSeconds": _measure_phases(run),
        "generatesAhead": _generates_ahead(run),
        "predicted": predicted.model_dump(exclude={"memory"}) if has_seconds else None,
        "unpredicted": None if has_seconds else run.unpredicted,
        "memoryPeak": peak,
        "memoryPredicted": predicted.memory or _plan_memory(run, status),
    }


def _measure_phases(run: RunFolder) -> dict[str, float]:
    """Medians; of broadcasts those alone that sent something, as with `weights.everySteps` most steps send nothing."""
    seconds = {phase: _positive(_later(run.metrics.values(f"{phase}_seconds"))) for phase in PHASES}
    sent = zip(run.metrics.values("broadcast_seconds"), run.metrics.values("broadcast_bytes"), strict=False)
    seconds["broadcast"] = _positive(_later([s for s, size in sent if size > 0])) or seconds["broadcast"]
    return {phase: median(each) for phase, each in seconds.items() if each}


def _generates_ahead(run: RunFolder) -> bool:
    """True if generation goes on while the trainer trains: `generate_seconds` is what the trainer waits for it."""
    rollout = run.spec().get("rollout")
    staleness = rollout.get("maxStaleness") if isinstance(rollout, Mapping) else None
    return isinstance(staleness, int) and staleness > 0


def _read_prediction(run: RunFolder) -> Prediction:
    """An empty one where the run has left none."""
    try:
        content = b"".join(run.lines(FILE))[:_MOST_BYTES]
        return Prediction.model_validate_json(content)
    except ValueError:
        return Prediction()


def _positive(values: Sequence[float]) -> list[float]:
    return [value for value in values if value > 0]


def _later(values: Sequence[float]) -> list[float]:
    finite = [value for value in values if isfinite(value)]
    return finite[1:] or finite


def _plan_memory(run: RunFolder, status: JobStatus | None) -> dict[str, str]:
    """The memory of a GPU by role, with its arithmetic, by the status of a cluster's job or else by the manifest."""
    plans = status.plan if status else {}
    try:
        plans = plans or plan(Spec.model_validate_json(json.dumps(run.spec()), extra="ignore"))
    except ValueError:  # of another release
        return {}
    return {role.value: each.memory for role, each in plans.items() if each.memory}
