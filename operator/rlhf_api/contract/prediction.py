"""A run's seconds and memory as they were predicted before its start: `prediction.json` of its work directory."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FILE = "prediction.json"
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Prediction(BaseModel):
    """Keys of other releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    step: Seconds | None = None
    """None without an earlier run of the same models."""
    phases: dict[str, Seconds] = {}
    """Of those of `generate`, `score`, `train` and `broadcast` that the job has."""
    by: str | None = None
    """Work directory of the earlier run whose rates these are."""
    memory: dict[str, str] = {}
    """Memory of a GPU, or of a process without one, by role, with its arithmetic."""
