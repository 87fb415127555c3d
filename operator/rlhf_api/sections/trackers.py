"""`spec.trackers`: further destinations of a run's metrics besides the files of its work directory."""

from pydantic import Field, JsonValue

from ..field_types import Frozen, TrackerKind


class Tracker(Frozen):
    """A service or file format that gets every metric of `metrics.jsonl` and of evaluations, and the manifest."""

    kind: TrackerKind
    """`tensorboard`, `wandb`, `mlflow`, `trackio`, or your own as `package.module:name` (docs/guides/trackers.md)."""
    project: str | None = Field(None, max_length=256)
    """Project of Weights & Biases and trackio, experiment of MLflow; `rlhf` unless given."""
    settings: dict[str, JsonValue] = {}
    """Further arguments of the client: of `SummaryWriter`, `wandb.init`, `MlflowClient`, `trackio.init` or your own."""
