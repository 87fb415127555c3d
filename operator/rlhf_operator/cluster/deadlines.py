"""Deadlines that end a job, and the start times that they are counted from; pure."""

import datetime

from rlhf_api.status import ClusterStatus, JobStatus

from ..job_status import time_text
from ..restart_policy import Finish
from .observed import Observed


def ended(
    observed: Observed, before: JobStatus, cluster: ClusterStatus, now: datetime.datetime
) -> Finish | None:
    """Finish of a job that ran or was provisioned for too long, or whose pods are refused permanently."""
    return _deadline(observed, before, now) or _too_long(observed, before, cluster, now) or _refusal(observed)


def _deadline(observed: Observed, before: JobStatus, now: datetime.datetime) -> Finish | None:
    limit = observed.wanted.spec.active_deadline_seconds
    if limit is None or before.start_time is None or before.phase in ("Pending", "Suspended"):
        return None
    ran = (now - datetime.datetime.fromisoformat(before.start_time)).total_seconds()
    if ran < limit:
        return None
    return Finish("Failed", "DeadlineExceeded", f"ran for {ran:.0f} s; spec.activeDeadlineSeconds is {limit}")


def _too_long(
    observed: Observed, before: JobStatus, cluster: ClusterStatus, now: datetime.datetime
) -> Finish | None:
    limit = observed.wanted.spec.scheduling.pre_running_deadline_seconds
    if limit is None or cluster.provisioning_since is None:
        return None
    waited = (now - datetime.datetime.fromisoformat(cluster.provisioning_since)).total_seconds()
    if waited < limit:
        return None
    message = f"the trainer did not begin within {limit} s (spec.scheduling.preRunningDeadlineSeconds)"
    return Finish(
        "Failed", "PreRunningDeadlineExceeded", f"{message}; {before.message}" if before.message else message
    )


def progress_time(
    observed: Observed, before: JobStatus, cluster: ClusterStatus, now: datetime.datetime
) -> str | None:
    """Time at which a step was last seen that is new."""
    stepped = observed.trainer is not None and observed.trainer.step != before.step
    return time_text(now) if stepped else cluster.progress_time


def _refusal(observed: Observed) -> Finish | None:
    return observed.refused if isinstance(observed.refused, Finish) else None
