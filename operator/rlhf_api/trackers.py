"""Trackers: further destinations of a run's metrics besides the files of its work directory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field, JsonValue

from .base import Frozen, TrackerKind
from .problems import Problem, show

if TYPE_CHECKING:
    from .spec import Spec


class Tracker(Frozen):
    """A service or file format that gets every metric of `metrics.jsonl` and of evaluations, and the manifest."""

    kind: TrackerKind
    """`tensorboard`, `wandb`, `mlflow`, `trackio`, or one of your own as `package.module:name` (docs/trackers.md)."""
    project: str | None = Field(None, max_length=256)
    """Project of Weights & Biases and trackio, experiment of MLflow; `rlhf` unless given."""
    settings: dict[str, JsonValue] = {}
    """Further arguments of the client: of `SummaryWriter`, `wandb.init`, `MlflowClient`, `trackio.init` or your own."""


def problems(spec: "Spec") -> Iterator[Problem]:
    for i, tracker in enumerate(spec.trackers):
        if tracker.kind == "tensorboard" and tracker.project is not None:
            where = f"spec.trackers[{i}].project"
            yield Problem(where, f"TensorBoard has no projects; remove it; got {show(tracker.project)}")
        if "api_key" in tracker.settings or "token" in tracker.settings:
            where = f"spec.trackers[{i}].settings"
            yield Problem(
                where, "must not hold secrets; use spec.pods.secrets, or the environment of `rlhf run`"
            )
