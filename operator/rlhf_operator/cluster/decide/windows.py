"""Restart windows of the roles' budgets, read from and written to the status; pure."""

import datetime
from collections.abc import Mapping

from rlhf_api.contract.status import ClusterStatus, JobStatus, RestartWindow
from rlhf_api.roles import Role

from ...console.text import time_text
from ...job.pod_status import seconds
from ...supervision.budget import Restarts


def read_windows(before: JobStatus, cluster: ClusterStatus) -> dict[Role, Restarts]:
    """Restarts by role, from the totals and windows in the status."""
    restarts = {role: Restarts(status.restarts) for role, status in before.roles.items()}
    for role, window in cluster.restarts.items():
        total = restarts.get(role, Restarts()).total
        since, last = seconds(window.since), seconds(window.last)
        restarts[role] = Restarts(total, window.failures, window.disruptions, since, last, window.cause)
    return restarts


def write_windows(restarts: Mapping[Role, Restarts]) -> dict[Role, RestartWindow]:
    return {
        role: RestartWindow(
            failures=each.failures,
            disruptions=each.disruptions,
            since=_stamp(each.since),
            last=_stamp(each.last),
            cause=each.cause,
        )
        for role, each in restarts.items()
        if each.failures or each.disruptions
    }


def _stamp(at: float) -> str:
    return time_text(datetime.datetime.fromtimestamp(at, datetime.UTC))
