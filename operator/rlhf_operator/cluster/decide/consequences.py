"""Consequences of the restart policy's actions: pods to make and to delete, restarts counted, the trainer's attempt;
pure."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_api.contract.run import pod_roles, pods_each, replicas
from rlhf_api.contract.status import ClusterStatus, JobStatus, RestartWindow
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...console.text import time_text
from ...job.pod_status import seconds
from ...job.snapshot import Pod
from ...supervision.budget import Restarts, record_restart
from ...supervision.process_state import Action, Finish, Kill, Start
from ..objects.pod import NewPod
from .pod_groups import PodGroups

KILL_SECONDS = 5
"""Grace period, seconds, of a trainer whose peer has failed: it has nothing left to save."""


@dataclass(frozen=True)
class Deletion:
    name: str
    uid: str
    grace: int | None = None
    """Seconds; the pod's own unless given."""
    stays: bool = False
    """True if its kubelet is only to end it, and the pod stays for its logs."""

    @property
    def forced(self) -> bool:
        """True if the pod's name is freed without its kubelet."""
        return self.grace == 0


@dataclass
class Consequences:
    """Changes of a job's pods, of its budgets, and of the attempt in its status."""

    restarts: Mapping[Role, Restarts]
    cluster: ClusterStatus
    finish: Finish | None = None
    create: list[NewPod] = field(default_factory=list)
    delete: list[Deletion] = field(default_factory=list)
    counted: set[str] = field(default_factory=set)
    """Uids of ended pods that are counted in `restarts` and whose names are needed again, so they are deleted."""


def apply_actions(
    actions: Sequence[Action],
    spec: Spec,
    groups: PodGroups,
    cluster: ClusterStatus,
    restarts: Mapping[Role, Restarts],
    now: datetime.datetime,
    *,
    waited: bool,
    unmade: bool,
) -> Consequences:
    """Consequences of the actions, in order: a start whose pod name is taken waits until that pod has gone, any other
    creates pods. `waited`: the pods that had to go before these starts were counted in an earlier reconcile; `unmade`:
    nothing of the attempt in the status ever ran, and none of its trainer pods exists."""
    made = Consequences(restarts, cluster)
    for action in actions:
        if isinstance(action, Finish):
            made.finish = action
            continue
        if isinstance(action, Kill):
            place = action.index, action.rank
            doomed = [pod for pod in groups.of(action.role) if (pod.index, pod.rank) == place]
            made.delete += [deletion(pod, KILL_SECONDS) for pod in doomed]
            continue
        occupied = _occupying(groups, action)
        # Pods that vanished before this reconcile have not been counted yet.
        if occupied or (action.again and not waited):
            made.restarts = record_restart(
                spec, made.restarts, action.role, now.timestamp(), counts=action.counts, cause=action.cause
            )
        if occupied:
            made.counted |= {pod.uid for pod in occupied}
            if action.role is Role.TRAINER and all(pod.restarts_in_place for pod in occupied):
                made.cluster = made.cluster.model_copy(update={"progress_time": time_text(now)})
            continue
        if action.role not in pod_roles(spec):
            continue  # its process is in the trainer's pod
        if action.role is Role.TRAINER and not unmade:
            attempt = made.cluster.attempt + 1
            new = {"attempt": attempt, "unmade": attempt, "progress_time": time_text(now)}
            made.cluster = made.cluster.model_copy(update=new)
        resume = made.cluster.attempt > 1 or spec.checkpoint.resume
        made.create += [
            NewPod(action.role, index, made.cluster.attempt, resume, rank)
            for index in action.indices
            for rank in range(pods_each(spec, action.role))
            if (action.role, index, rank) not in groups.current
        ]
    return made


def clear_unmade_attempt(spec: Spec, cluster: ClusterStatus, groups: PodGroups) -> ClusterStatus:
    """Clears `unmade` once every trainer pod of the present attempt has a node: from then on they may train and leave
    checkpoints, which none does without the others."""
    trainers = [pod for pod in groups.of(Role.TRAINER) if pod.attempt == cluster.attempt]
    ran = {pod.index for pod in trainers if pod.node or pod.ended}
    whole = ran >= {*range(replicas(spec, Role.TRAINER))}
    return cluster.model_copy(update={"unmade": None}) if whole else cluster


def deletion(pod: Pod, grace: int | None = None) -> Deletion:
    return Deletion(pod.name, pod.object_uid, grace)


def last_deletion(pod: Pod) -> Deletion:
    """Ends a pod at the end of its job. A shared one stays, for the logs of its trainer and its servers."""
    return Deletion(pod.name, pod.object_uid, stays=bool(pod.pod_uid))


def _occupying(groups: PodGroups, start: Start) -> list[Pod]:
    """Pods that hold names of the new ones. Trainers start all together or not at all; for a generator that has not
    begun, pods that could not be created at first join those that exist."""
    if start.role is Role.TRAINER:
        return groups.of(Role.TRAINER)
    pods = [pod for pod in groups.of(start.role) if pod.index in start.indices]
    return pods if start.again else [pod for pod in pods if pod not in groups.current.values()]


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
