"""Everything that decisions about a job are made on, of one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.status import TrainerStatus

from ..restart_policy import Finish
from .desired import Desired
from .kueue import Quota
from .snapshot import Job, Pod


@dataclass(frozen=True)
class Observed:
    """A job as the cluster and its trainer show it."""

    job: Job
    wanted: Desired
    pods: Sequence[Pod]
    trainer: TrainerStatus | None = None
    """The last report of the present trainer."""
    silent_since: float | None = None
    """Start of its silence, in seconds since the epoch."""
    refused: Finish | str | None = None
    """Refusal by the API server of the pods that were to be made last."""
    quota: Quota = "none"
    prices: Mapping[str, float] = field(default_factory=dict)
    """Of a GPU for an hour, by resource name."""
