"""`spec.samples`: prompts and responses of training that are kept for people to read."""

from pydantic import Field

from ..field_types import Frozen, Positive

SAMPLES = "samples.jsonl"
"""File in the work directory, and blob of a snapshot: one line per response, oldest step first."""


class Samples(Frozen):
    """Responses of each step that `rlhf samples` shows, in `samples.jsonl` of the work directory and in checkpoints."""

    prompts_per_step: int = Field(2, ge=0, le=1024)
    """Prompts of a step whose responses are kept; 0 keeps none."""
    max_megabytes: Positive = Field(8, le=1024)
    """Size limit; beyond it only every second step is kept, then every fourth, and so on."""
