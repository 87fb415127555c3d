"""Predicts memory and seconds of a run before it starts, these at the rates of an earlier run."""

import json
from collections.abc import Iterator
from pathlib import Path

from rlhf_api.contract.prediction import FILE, Prediction
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.duration import Batch, Work, of_step, predicted
from rlhf_api.estimate.resources import plan
from rlhf_api.estimate.sizes import FileSizes
from rlhf_api.spec import Spec

from . import workdir
from .measured import Measured

_MOST_RUNS = 100
"""The newest ones, whose configuration is read."""
_MOST_BYTES = 64 << 20
"""Of an earlier run's figures; larger ones would delay the start."""


def predict(folder: Path, spec: Spec, file_sizes: FileSizes) -> Prediction:
    """Memory where the models' sizes are known, and seconds where there is an earlier run."""
    plans = plan(spec, file_sizes)
    memory = {role.value: each.memory for role, each in plans.items() if each.memory}
    prediction = predict_seconds(folder, spec, file_sizes) or Prediction()
    return prediction.model_copy(update={"memory": memory})


def predict_seconds(folder: Path, spec: Spec, file_sizes: FileSizes) -> Prediction | None:
    """At the rates of the newest run, in this work directory or one beside it, that trained the same models and has
    every phase of this job; None without one."""
    for earlier in _list_runs(folder, spec):
        try:
            measured = Measured.read(earlier)
            work = Work.of(spec, file_sizes, Batch.of(spec, measured.filled))
            phases = predicted(work, measured.machine())
        except (InvalidJob, KeyError):  # no step, models that are no more, or lines of another release
            continue
        if step := of_step(spec, phases):
            known = {name: seconds for name, seconds in phases.items() if seconds}
            return Prediction(step=step, phases=known, by=str(earlier))
    return None


def write_prediction(folder: Path, prediction: Prediction) -> None:
    """Raises OSError."""
    (folder / FILE).write_text(prediction.model_dump_json() + "\n", encoding="utf-8")


def _list_runs(folder: Path, spec: Spec) -> Iterator[Path]:
    """Runs with equal `spec.model`, the one that was changed last first."""
    model = spec.model.model_dump(mode="json", by_alias=True)
    dated = [
        (when, file.parent) for file in folder.parent.glob(f"*/{workdir.METRICS}") if (when := _date(file))
    ]
    for _, run in sorted(dated, reverse=True)[:_MOST_RUNS]:
        if _read_model(run) == model:
            yield run


def _date(figures: Path) -> float | None:
    """None for figures that are too many, or were deleted meanwhile."""
    try:
        stat = figures.stat()
    except OSError:
        return None
    return stat.st_mtime if stat.st_size <= _MOST_BYTES else None


def _read_model(run: Path) -> object:
    try:
        return json.loads((run / workdir.CONFIG).read_bytes())["spec"]["model"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
