"""Builds a job's status and events from what was observed and decided; pure."""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_api.resources import plan as resource_plan
from rlhf_api.roles import Role
from rlhf_api.run import pods_each, roles_of
from rlhf_api.spec import Spec
from rlhf_api.status import ClusterStatus, Condition, JobStatus, Phase, RuntimeStatus

from ..job_status import condition, is_true, job_status, new_breach, time_text, with_times
from ..restart_policy import Finish, ProcessState
from .names import RANK, role_labels, selector
from .observed import Observed
from .pod import MODEL_CACHE, NewPod
from .pod_groups import lost
from .snapshot import Pod
from .usage import counted

SILENT_SECONDS = 30.0
"""Time without a reply after which the trainer is reported as silent, seconds."""
LONGEST = 1024
"""Maximum length of a message, in characters."""
_FIGURE = re.compile(r"(?<![\w-])\d+")
"""A number that is no part of a name: of nodes, say, in what a scheduler tells."""


@dataclass(frozen=True)
class Event:
    """A Kubernetes event, as `kubectl describe` shows it."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    alike: str | None = None
    """Message without its figures: events that agree in it are one series. None: the message itself."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One reconcile of a job: what was observed, and what was decided."""

    observed: Observed
    before: JobStatus
    """The status before this reconcile."""
    processes: Sequence[ProcessState]
    restarts: Mapping[Role, int]
    """Restarts in the whole run, including those about to happen."""
    cluster: ClusterStatus
    pods: Sequence[Pod]
    """Every pod of the job, desired or not."""
    now: datetime.datetime
    finish: Finish | None = None
    creating: Sequence[NewPod] = ()
    """Pods that are about to be made."""
    suspending: bool = False
    """The trainer is requested to checkpoint and exit."""

    @property
    def resumed(self) -> bool:
        return self.before.phase == "Suspended" and self.finish is None and not self.suspending

    @property
    def over_tcp(self) -> str | None:
        """Reason why the running trainer's NCCL uses TCP although the job requests RDMA."""
        trainer = self.observed.trainer
        return trainer.over_tcp if trainer is not None and self.finish is None else None


def describe(look: Look) -> tuple[JobStatus, tuple[Event, ...]]:
    """The new status, and events for what has changed since the last one."""
    observed, pods, finish = look.observed, look.pods, look.finish
    job, spec = observed.job, observed.wanted.spec
    before = look.before.model_copy(update={"start_time": None}) if look.resumed else look.before
    status = job_status(
        spec, look.processes, look.restarts, observed.trainer, before=before, now=look.now, finish=finish
    )
    reason = _waiting_reason(pods, observed.refused)
    message = (
        "suspending: waits for a checkpoint"
        if look.suspending
        else _join(status.message, reason, _filling(pods))
    )
    firsts = [pod for pod in pods if pod.role is Role.GENERATOR and pod.rank == 0]
    coming = sum(new.role is Role.GENERATOR and new.rank == 0 for new in look.creating)
    generators = 0 if finish else coming + sum(pod.ended is None for pod in firsts)
    has_generators = Role.GENERATOR in roles_of(spec)
    phase = finish.phase if finish else _phase(status.phase, look)
    status = status.model_copy(
        update={
            "phase": phase,
            "message": message[:LONGEST],
            "observed_generation": job.generation,
            "generator_replicas": generators,
            "selector": _selector(job.name, spec) if has_generators else "",
            "plan": resource_plan(spec),
            **counted(before, pods, spec, observed.prices, look.now),
            "cluster": look.cluster.model_copy(
                update={"provisioning_since": _provisioning_since(phase, look)}
            ),
            "runtime": before.runtime if finish else _runtime(observed),
            "conditions": with_times(_conditions(status, phase, look), before.conditions),
        }
    )
    return status, tuple(_events(status, reason, look))


def _selector(job: str, spec: Spec) -> str:
    """Selects one pod of each generator, so that autoscalers count the same as `replicas`."""
    first = {RANK: "0"} if pods_each(spec, Role.GENERATOR) > 1 else {}
    return selector({**role_labels(job, Role.GENERATOR), **first})


def _runtime(observed: Observed) -> RuntimeStatus | None:
    runtime = observed.wanted.pinned.defaults.runtime
    if runtime is None:
        return None
    return RuntimeStatus(kind=runtime.kind, name=runtime.name, generation=runtime.generation)


def _conditions(status: JobStatus, phase: Phase, look: Look) -> list[Condition]:
    observed, stamp, now = look.observed, time_text(look.now), look.now.timestamp()
    silent_since, ignored = None if look.finish else observed.silent_since, observed.wanted.ignored
    found = [
        *(c for c in status.conditions if c.type != "Suspended"),
        _scheduled(look.pods, observed.refused, stamp),
        _suspended(look.finish, look.suspending, stamp),
        failed_for_good(look.finish.reason, look.finish.message, stamp)
        if look.finish and look.finish.phase == "Failed"
        else _stalled(look.pods, observed.refused, silent_since, stamp, now),
        *([condition("SlowNetwork", "True", "NcclOverTcp", look.over_tcp, stamp)] if look.over_tcp else ()),
        *([condition("SpecChanged", "True", "NotApplied", ignored, stamp)] if ignored else ()),
    ]
    found.append(_ready(phase, look.finish, found, stamp))
    return [c.model_copy(update={"observed_generation": observed.job.generation}) for c in found]


def _ready(phase: Phase, finish: Finish | None, others: Sequence[Condition], stamp: str) -> Condition:
    """Ready, with kstatus semantics: the job runs with all roles, has ended, or is suspended."""
    if finish is not None:
        wanted = finish.phase == "Succeeded" or finish.reason == "Suspended"
        return condition("Ready", "True" if wanted else "False", finish.reason, finish.message, stamp)
    roles = next(c for c in others if c.type == "RolesReady")
    if phase == "Running" and roles.status == "True":
        return condition("Ready", "True", "Running", "", stamp)
    return condition("Ready", "False", phase, roles.message, stamp)


def _phase(phase: Phase, look: Look) -> Phase:
    if look.suspending:
        return look.before.phase  # its trainer may have ended already, and nothing is being started
    if phase == "Pending" and look.creating:
        return "Provisioning"
    alive = any(p.role is Role.TRAINER and p.started and not p.ended for p in look.processes)
    if phase == "Provisioning" and look.before.phase == "Running" and look.observed.trainer is None and alive:
        return "Running"  # only the operator has lost the connection
    return phase


def _provisioning_since(phase: Phase, look: Look) -> str | None:
    """In the very status that says so: a time written at the next look would be a write of its own."""
    if phase != "Provisioning" or look.suspending:
        return None
    return look.cluster.provisioning_since or time_text(look.now)


def _waiting_reason(pods: Sequence[Pod], refused: Finish | str | None) -> str:
    if isinstance(refused, str):
        return refused
    troubled = [
        f"{pod.name}: {pod.waiting_reason}" for pod in pods if pod.waiting_reason and pod.ended is None
    ]
    more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return troubled[0] + more if troubled else ""


def _filling(pods: Sequence[Pod]) -> str:
    """Pods whose models are being downloaded into the cache."""
    found = [pod.name for pod in pods if pod.initializing == MODEL_CACHE and pod.ended is None]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return (
        f"{found[0]}{more} fills the model cache: `kubectl logs {found[0]} -c {MODEL_CACHE}`" if found else ""
    )


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
    """Two jobs, each with some pods scheduled, may wait for each other for ever."""
    holding, why = [pod for pod in pods if pod.node and pod.ended is None], _waiting_reason(waiting, None)
    if not holding:
        return "Unschedulable", why
    advice = "set spec.scheduling.gang, or spec.scheduling.preRunningDeadlineSeconds to let go of them"
    return "PartlyScheduled", f"{why}; {len(holding)} other pods hold their nodes meanwhile: {advice}"


def failed_for_good(reason: str, message: str, stamp: str) -> Condition:
    """Stalled: nothing that the operator does helps the job; kstatus and its clients treat it as failed."""
    return condition("Stalled", "True", reason, message, stamp)


def _stalled(
    pods: Sequence[Pod], refused: Finish | str | None, silent_since: float | None, stamp: str, now: float
) -> Condition:
    """Stalled, with kstatus semantics: the first reason why the job makes no progress."""
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


def _events(status: JobStatus, waiting_reason: str, look: Look) -> list[Event]:
    found, before, finish, ignored = list[Event](), look.before, look.finish, look.observed.wanted.ignored
    if ignored:
        found.append(Event("Warning", "SpecChangeIgnored", ignored))
    if look.over_tcp and not is_true(before, "SlowNetwork"):
        found.append(Event("Warning", "NcclOverTcp", look.over_tcp))
    if waiting_reason:
        alike = _FIGURE.sub("", waiting_reason)
        found.append(Event("Warning", "PodsWaiting", waiting_reason, alike))
    for process in look.processes:
        earlier = before.roles.get(process.role)
        if process.ended and earlier and status.roles[process.role].restarts > earlier.restarts:
            found.append(Event("Warning", "PodFailed", f"{process.name} {process.ended.reason}"))
    if status.health and new_breach(status.health, before.health):
        found.append(Event("Warning", status.health.reason, status.health.message))
    if look.resumed:
        found.append(Event("Normal", "Resumed", f"goes on from step {status.step}"))
    if status.phase == before.phase:
        return found
    if finish is not None:
        kind: Literal["Normal", "Warning"] = "Warning" if finish.phase == "Failed" else "Normal"
        message = finish.message or f"{status.progress} steps"
        found.append(Event(kind, finish.reason if finish.phase == "Failed" else finish.phase, message))
    elif status.phase == "Running":
        found.append(Event("Normal", "Running", "the trainer is up"))
    return found
