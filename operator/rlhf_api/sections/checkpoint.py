"""`spec.checkpoint` and `spec.export`: what a run leaves, how often, and what stays."""

from pydantic import Field

from ..field_types import Frozen, Positive, StoreUrl


class Origin(Frozen):
    """A checkpoint of another run, to start from; `rlhf clone` writes this."""

    store: StoreUrl
    """The other run's store, readable with this run's credentials."""
    step: Positive


class Checkpoint(Frozen):
    """Checkpoints of the run: their store, how often, and which stay."""

    store: StoreUrl | None = None
    """`file://`, `s3://`, `gs://` or `az://`; `checkpoints` in the work directory unless given."""
    every_steps: Positive = 10
    resume: bool = False
    """Resume from the checkpoints of an earlier run in the store; without any, start anew."""
    start_from: Origin | None = None
    """Start from a step of another run, by a copy of its checkpoint, unless this run has checkpoints of its own."""
    keep_last: Positive = 2
    """Number of newest checkpoints to keep; older ones are deleted, except those of `keepEvery` and `keepBest`."""
    keep_every: int = Field(0, ge=0)
    """Checkpoints of steps that are multiples of this are kept too; 0: none."""
    keep_best: int = Field(0, ge=0)
    """Checkpoints with the best evaluation that are kept too: the highest mean, or the lowest loss on given
    responses; with several sets, their mean."""
    timeout_seconds: Positive = 600
    """Retry deadline of a store that does not respond; training continues meanwhile until the next checkpoint."""


class Export(Frozen):
    """The trained models in the work directory, in Hugging Face format."""

    every_steps: int = Field(0, ge=0)
    """Steps from one export to the next, each in place of the one before; 0: only one, at the end."""
