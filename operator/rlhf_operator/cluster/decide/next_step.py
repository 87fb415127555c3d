"""The next step of a job: the status to write, and the actions that follow from it."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlhf_api.contract.run import Membership
from rlhf_api.contract.status import JobStatus

from ...job.baseline import as_object
from ...job.snapshot import Job, Pod
from ...status.condition import refused
from ..objects.pod import NewPod
from .consequences import Deletion, deletion
from .describe import Event
from .pod_groups import is_lost

POLL_SECONDS = 5.0
"""Poll interval of a running job, seconds."""
Queue = Literal["enter", "leave", "release", "report"]
"""Request the job's quota from Kueue, return it, return it but stay in the queue, or report the admitted pods'
state.
"""


@dataclass(frozen=True)
class Plan:
    """The status to write first, then the actions that follow from it. Each part may fail or be cut short: the next
    reconcile sees what is missing."""

    status: JobStatus | None
    """The status to write; None if it is unchanged."""
    companions: bool = False
    """Create the job's ConfigMap, service, policy and gang if missing."""
    token: bool = False
    """Create the token's Secret again: a pod that was to start did not find it."""
    create: tuple[NewPod, ...] = ()
    delete: tuple[Deletion, ...] = ()
    members: Membership = field(default_factory=Membership)
    stop: bool = False
    """Request a checkpoint and exit of the trainer."""
    events: tuple[Event, ...] = ()
    queue: Queue | None = None
    generators: int | None = None
    """Scale the job to this number."""
    expire: bool = False
    """Delete the job: its TTL has expired."""
    again: float | None = POLL_SECONDS
    """Seconds until the next reconcile, unless something happens before."""
    due: float | None = None
    """Seconds until a process that has ended may be started again; a look at the latest then."""


def deletions(
    requested: Sequence[Deletion], pods: Sequence[Pod], now: datetime.datetime
) -> tuple[Deletion, ...]:
    """Deletions to start: of pods that are not being deleted yet, and of those that are given up as lost; `pods`: all
    of the job."""
    going = {pod.object_uid for pod in pods if pod.deletion_deadline is not None}
    new = {each.uid: each for each in requested if each.uid not in going}
    given_up = {pod.object_uid: deletion(pod, 0) for pod in pods if is_lost(pod, now.timestamp())}
    return (*new.values(), *given_up.values())


def seconds_until_ttl(job: Job, status: JobStatus, now: datetime.datetime) -> float | None:
    """Seconds until an ended job is deleted, by its spec's `ttlSecondsAfterFinished`, also of a spec that is invalid;
    None if it stays. One that can be corrected does, and a dispatched copy, whose status MultiKueue has yet to copy:
    that goes with the job of the first cluster."""
    lifetime = as_object(job.body.get("spec")).get("ttlSecondsAfterFinished")
    if not isinstance(lifetime, int) or status.completion_time is None or refused(status) or job.dispatched:
        return None
    ended = datetime.datetime.fromisoformat(status.completion_time)
    return (ended + datetime.timedelta(seconds=lifetime) - now).total_seconds()
