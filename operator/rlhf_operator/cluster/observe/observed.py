"""One observation of a job: the input of all decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.contract.report import TrainerStatus

from ...job.snapshot import Job, Pod
from ...supervision.process_state import Finish
from ..objects.kueue import Quota
from .desired import Desired


@dataclass(frozen=True)
class Observed:
    """A job as observed in the cluster and at its trainer."""

    job: Job
    desired: Desired
    pods: Sequence[Pod]
    trainer: TrainerStatus | None = None
    """Last report of the present trainer."""
    silent_since: float | None = None
    """Time since when the trainer has been silent, in seconds since the epoch."""
    trainer_error: str = ""
    """The reason for which the trainer's last answer was of no use."""
    refused: Finish | str | None = None
    """The API server's refusal of the pods that were to be created last."""
    deleted_pods: Sequence[Pod] = ()
    """Pods that are gone since the last observation: their ends may not have been seen before."""
    created_attempt: int | None = None
    """Newest attempt of the trainer gang of which this operator has created a pod."""
    quota: Quota = "none"
    deactivated: bool = False
    """True if an administrator has deactivated the job's Workload."""
    prices: Mapping[str, float] = field(default_factory=dict)
    """Price per GPU hour, by resource name."""
