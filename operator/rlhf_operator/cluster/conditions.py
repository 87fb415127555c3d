"""A job's status and events from what was seen and decided; pure."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_api.resources import plan as resource_plan
from rlhf_api.roles import Role
from rlhf_api.run import roles_of
from rlhf_api.status import ClusterStatus, Condition, JobStatus, Phase, TrainerStatus

from ..job_status import condition, job_status, time_text, with_times
from ..restart_policy import Finish, ProcessState
from .desired import Desired
from .names import role_labels, selector
from .pod_groups import lost
from .snapshot import Job, Pod

SILENT_SECONDS = 30.0
"""A trainer that does not answer for so long is told of."""
LONGEST = 1024
"""Characters of a message."""


@dataclass(frozen=True)
class Event:
    """What `kubectl describe` shows under Events."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def describe(
    job: Job,
    wanted: Desired,
    before: JobStatus,
    processes: Sequence[ProcessState],
    restarts: Mapping[Role, int],
    trainer: TrainerStatus | None,
    cluster: ClusterStatus,
    pods: Sequence[Pod],
    *,
    now: datetime.datetime,
    finish: Finish | None = None,
    creating: int = 0,
    suspending: bool = False,
    refused: Finish | str | None = None,
    silent_since: float | None = None,
) -> tuple[JobStatus, tuple[Event, ...]]:
    """The status now, and the events that tell of what changed since `before`."""
    spec = wanted.spec
    resumed = before.phase == "Suspended" and finish is None and not suspending
    if resumed:
        before = before.model_copy(update={"start_time": None})
    status = job_status(spec, processes, restarts, trainer, before=before, now=now, finish=finish)
    phase = finish.phase if finish else _phase(status.phase, before, processes, trainer, creating)
    if suspending:
        phase = before.phase  # its trainer may have ended already, and starts nothing
    waiting_reason = _waiting_reason(pods, refused)
    message = "suspending: waits for a checkpoint" if suspending else _join(status.message, waiting_reason)
    generators = 0 if finish else sum(pod.role is Role.GENERATOR and pod.ended is None for pod in pods)
    has_generators = Role.GENERATOR in roles_of(spec)
    stamp = time_text(now)
    conditions = [
        *(c for c in status.conditions if c.type != "Suspended"),
        _scheduled(pods, refused, stamp),
        _suspended(finish, suspending, stamp),
        _stalled(pods, refused, silent_since if finish is None else None, stamp, now.timestamp()),
        *([condition("SpecChanged", "True", "NotApplied", wanted.ignored, stamp)] if wanted.ignored else ()),
    ]
    conditions = [c.model_copy(update={"observed_generation": job.generation}) for c in conditions]
    status = status.model_copy(
        update={
            "phase": phase,
            "message": message[:LONGEST],
            "observed_generation": job.generation,
            "generator_replicas": generators,
            "selector": selector(role_labels(job.name, Role.GENERATOR)) if has_generators else "",
            "plan": resource_plan(spec),
            "cluster": cluster,
            "conditions": with_times(conditions, before.conditions),
        }
    )
    return status, tuple(_events(before, status, finish, wanted, waiting_reason, processes, resumed=resumed))


def _phase(
    phase: Phase,
    before: JobStatus,
    processes: Sequence[ProcessState],
    trainer: TrainerStatus | None,
    creating: int,
) -> Phase:
    if phase == "Pending" and creating:
        return "Provisioning"
    alive = any(p.role is Role.TRAINER and p.started and not p.ended for p in processes)
    if phase == "Provisioning" and before.phase == "Running" and trainer is None and alive:
        return "Running"  # only we have lost sight of it
    return phase


def _waiting_reason(pods: Sequence[Pod], refused: Finish | str | None) -> str:
    if isinstance(refused, str):
        return refused
    troubled = [
        f"{pod.name}: {pod.waiting_reason}" for pod in pods if pod.waiting_reason and pod.ended is None
    ]
    more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return troubled[0] + more if troubled else ""


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _scheduled(pods: Sequence[Pod], refused: Finish | str | None, stamp: str) -> Condition:
    if isinstance(refused, str):
        return condition("PodsScheduled", "False", "PodsRefused", refused, stamp)
    waiting = [pod for pod in pods if not pod.scheduled and pod.ended is None]
    if waiting:
        reason, message = _unplaced(pods, waiting)
        return condition("PodsScheduled", "False", reason, message, stamp)
    return condition("PodsScheduled", "True", "Scheduled", "", stamp)


def _unplaced(pods: Sequence[Pod], waiting: Sequence[Pod]) -> tuple[str, str]:
    """Two jobs, each with a part of its pods placed, may wait for each other for ever."""
    holding, why = [pod for pod in pods if pod.node and pod.ended is None], _waiting_reason(waiting, None)
    if not holding:
        return "Unschedulable", why
    advice = "set spec.scheduling.gang, or spec.scheduling.preRunningDeadlineSeconds to let go of them"
    return "PartlyScheduled", f"{why}; {len(holding)} other pods hold their nodes meanwhile: {advice}"


def _stalled(
    pods: Sequence[Pod], refused: Finish | str | None, silent_since: float | None, stamp: str, now: float
) -> Condition:
    """Why the job does not get on, in the terms of kstatus; a first reason where there are several."""
    if silent_since is not None and now >= silent_since + SILENT_SECONDS:
        since = time_text(datetime.datetime.fromtimestamp(silent_since, datetime.UTC))
        return condition("Stalled", "True", "TrainerUnreachable", f"has not answered since {since}", stamp)
    for pod in (pod for pod in pods if lost(pod, now)):
        message = f"{pod.name} should be gone, and its node {pod.node} does not say so; the pod is given up"
        return condition("Stalled", "True", "NodeLost", message, stamp)
    if isinstance(refused, str):
        return condition("Stalled", "True", "PodsRefused", refused, stamp)
    living = [pod for pod in pods if pod.ended is None]
    if waiting := [pod for pod in living if not pod.scheduled]:
        return condition("Stalled", "True", *_unplaced(living, waiting), stamp)
    for pod in (pod for pod in living if pod.waiting_reason):
        reason = (pod.waiting_reason or "").partition(":")[0]
        return condition("Stalled", "True", reason, _waiting_reason([pod], None), stamp)
    return condition("Stalled", "False", "NotStalled", "", stamp)


def _suspended(finish: Finish | None, suspending: bool, stamp: str) -> Condition:
    if finish is not None and finish.phase == "Suspended":
        return condition("Suspended", "True", finish.reason, finish.message, stamp)
    if suspending:
        return condition("Suspended", "False", "Suspending", "waits for a checkpoint", stamp)
    return condition("Suspended", "False", "NotSuspended", "", stamp)


def _events(
    before: JobStatus,
    status: JobStatus,
    finish: Finish | None,
    wanted: Desired,
    waiting_reason: str,
    processes: Sequence[ProcessState],
    *,
    resumed: bool,
) -> list[Event]:
    found = list[Event]()
    if wanted.ignored:
        found.append(Event("Warning", "SpecChangeIgnored", wanted.ignored))
    if waiting_reason:
        found.append(Event("Warning", "PodsWaiting", waiting_reason))
    for process in processes:
        earlier = before.roles.get(process.role)
        if process.ended and earlier and status.roles[process.role].restarts > earlier.restarts:
            found.append(Event("Warning", "PodFailed", f"{process.name} {process.ended.reason}"))
    if resumed:
        found.append(Event("Normal", "Resumed", f"goes on from step {status.step}"))
    if status.phase == before.phase:
        return found
    if finish is not None:
        kind: Literal["Normal", "Warning"] = "Warning" if finish.phase == "Failed" else "Normal"
        message = finish.message or f"{status.progress} steps"
        found.append(Event(kind, finish.reason if finish.phase == "Failed" else finish.phase, message))
    elif status.phase == "Provisioning" and not resumed:
        roles = ", ".join(
            f"{role.value} x {role_status.desired}" for role, role_status in status.roles.items()
        )
        found.append(Event("Normal", "Provisioning", f"starts {roles}"))
    elif status.phase == "Running":
        found.append(Event("Normal", "Running", "the trainer is up"))
    return found
