"""Seconds of a run's step as they were predicted before its start: `prediction.json` of its work directory."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FILE = "prediction.json"
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Prediction(BaseModel):
    """Keys of other releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    step: Seconds
    phases: dict[str, Seconds]
    """Of those of `generate`, `score`, `train` and `broadcast` that the job has."""
    by: str
    """Work directory of the earlier run whose rates these are."""
