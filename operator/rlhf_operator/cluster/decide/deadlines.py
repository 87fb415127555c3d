"""Deadlines that end a job, and the start times that they are counted from; pure."""

import datetime

from rlhf_api.contract.status import ClusterStatus, JobStatus

from ...console.text import time_text
from ...job.snapshot import Pod
from ...supervision.process_state import Finish
from ...supervision.progress_deadline import shows_progress
from ..observe.observed import Observed
from .conditions import SILENT_SECONDS

MOVES_ON = 0.1
"""Share of the progress deadline after which the time of the trainer's last progress is written again."""


def find_end(
    observed: Observed, before: JobStatus, cluster: ClusterStatus, now: datetime.datetime
) -> Finish | None:
    """Finish of a job that ran or was provisioned for too long, or whose pods are refused permanently."""
    return _deadline(observed, before, now) or _exceeded(observed, before, cluster, now) or _refusal(observed)


def _deadline(observed: Observed, before: JobStatus, now: datetime.datetime) -> Finish | None:
    limit = observed.desired.spec.active_deadline_seconds
    if limit is None or before.start_time is None or before.phase in ("Pending", "Suspended"):
        return None
    ran = (now - datetime.datetime.fromisoformat(before.start_time)).total_seconds()
    if ran < limit:
        return None
    return Finish("Failed", "DeadlineExceeded", f"ran for {ran:.0f} s; spec.activeDeadlineSeconds is {limit}")


def _exceeded(
    observed: Observed, before: JobStatus, cluster: ClusterStatus, now: datetime.datetime
) -> Finish | None:
    limit = observed.desired.spec.scheduling.pre_running_deadline_seconds
    if limit is None or cluster.provisioning_since is None:
        return None
    waited = (now - datetime.datetime.fromisoformat(cluster.provisioning_since)).total_seconds()
    if waited < limit:
        return None
    message = f"the trainer did not begin within {limit} s (spec.scheduling.preRunningDeadlineSeconds)"
    return Finish(
        "Failed", "PreRunningDeadlineExceeded", f"{message}; {before.message}" if before.message else message
    )


def with_progress(
    observed: Observed, first: Pod | None, cluster: ClusterStatus, now: datetime.datetime
) -> ClusterStatus:
    """The cluster's status with the time of the trainer's last progress updated; `first` is its rank 0's pod. Each new
    time is a write to the API server, so it moves on by MOVES_ON of the deadline at least; until then, the next report
    shows progress too."""
    if cluster.progress_time is None:
        return cluster
    age = (now - datetime.datetime.fromisoformat(cluster.progress_time)).total_seconds()
    if age < MOVES_ON * observed.desired.spec.trainer.progress_deadline_seconds:
        return cluster
    if not _made_progress(observed, first, cluster.progress_count, now.timestamp()):
        return cluster
    count = observed.trainer.progress_count if observed.trainer else None
    return cluster.model_copy(update={"progress_time": time_text(now), "progress_count": count})


def _made_progress(observed: Observed, first: Pod | None, count: int | None, now: float) -> bool:
    """True if the trainer reports progress. While only the operator cannot reach it, and its kubelet can, nothing is
    known of it, and it counts as progressing."""
    report, silent_since = observed.trainer, observed.silent_since
    if report is None or (silent_since is not None and now >= silent_since + SILENT_SECONDS):
        return first is not None and first.ready
    return silent_since is None and shows_progress(report, count)


def _refusal(observed: Observed) -> Finish | None:
    return observed.refused if isinstance(observed.refused, Finish) else None
