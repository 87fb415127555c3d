"""Conditions of a job's status: why it does not run, is stalled, suspended or ready; pure."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_api.contract.status import ClusterStatus, Condition, JobStatus, Phase
from rlhf_api.roles import Role

from ...console.text import time_text
from ...job.pod_status import GATED, NODE_UNREACHABLE
from ...job.snapshot import Pod
from ...status.condition import ConditionType, condition
from ...status.job_status import stalled
from ...supervision.process_state import Finish, ProcessState
from ..objects.pod import NewPod
from ..observe.observed import Observed
from .pod_groups import is_held_by_finalizer, is_lost

SILENT_SECONDS = 30.0
"""Time without a reply after which the trainer is reported as silent, seconds."""


@dataclass(frozen=True, kw_only=True)
class ReconcileState:
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
    stall: str = ""
    """The reason for which the trainer makes no progress; empty where it does."""

    @property
    def resumed(self) -> bool:
        return self.before.phase == "Suspended" and self.finish is None and not self.suspending

    @property
    def warnings(self) -> dict[ConditionType, tuple[str, str]]:
        """Conditions, with their reasons and messages, of what the running trainer warns about."""
        trainer = None if self.finish else self.observed.trainer
        if trainer is None:
            return {}
        candidates: dict[ConditionType, tuple[str, str | None]] = {
            "SlowNetwork": ("NcclOverTcp", trainer.over_tcp),
            "DataChanged": ("OtherRows", trainer.data_changed),
        }
        return {kind: (reason, message) for kind, (reason, message) in candidates.items() if message}


def conditions(status: JobStatus, phase: Phase, state: ReconcileState) -> list[Condition]:
    observed, stamp, now = state.observed, time_text(state.now), state.now.timestamp()
    silent_since, ignored = None if state.finish else observed.silent_since, observed.desired.ignored
    reported = [
        *(_with_avoided_nodes(c, state, stamp) for c in status.conditions if c.type != "Suspended"),
        _scheduled(state.pods, observed.refused, phase, stamp),
        _suspended(state.finish, state.suspending, stamp),
        failed_condition(state.finish.reason, state.finish.message, stamp)
        if state.finish and state.finish.phase == "Failed"
        else _stalled(state, silent_since, status, phase, stamp, now),
        *(
            condition(kind, "True", *reason_and_message, stamp)
            for kind, reason_and_message in state.warnings.items()
        ),
        *([condition("SpecChanged", "True", "NotApplied", ignored, stamp)] if ignored else ()),
    ]
    reported.append(_ready(phase, state.finish, reported, stamp))
    return [c.model_copy(update={"observed_generation": observed.job.generation}) for c in reported]


def _with_avoided_nodes(original: Condition, state: ReconcileState, stamp: str) -> Condition:
    """The condition, or RolesReady with the node that has taken a server away: the job may train on without that one,
    and is not stalled."""
    unreachable = [pod for pod in state.pods if pod.unreachable and pod.ended is None]
    if state.finish or original.type != "RolesReady" or original.status == "True" or not unreachable:
        return original
    message = f"{original.message}; {waiting_reason(unreachable, None)}"
    return condition("RolesReady", "False", NODE_UNREACHABLE, message, stamp)


def _ready(phase: Phase, finish: Finish | None, others: Sequence[Condition], stamp: str) -> Condition:
    """Ready, with kstatus semantics: the job runs with all roles, has ended, or is suspended. Where it is stalled, with
    that reason, which `kubectl get` shows."""
    if finish is not None:
        is_ready = finish.phase == "Succeeded" or finish.reason == "Suspended"
        return condition("Ready", "True" if is_ready else "False", finish.reason, finish.message, stamp)
    roles = next(c for c in others if c.type == "RolesReady")
    if phase == "Running" and roles.status == "True":
        return condition("Ready", "True", "Running", "", stamp)
    stall = next(c for c in others if c.type == "Stalled")
    cause = (stall.reason, stall.message) if stall.status == "True" else (phase, roles.message)
    return condition("Ready", "False", *cause, stamp)


def waiting_reason(pods: Sequence[Pod], refused: Finish | str | None) -> str:
    if isinstance(refused, str):
        return refused
    waiting = (pod for pod in pods if pod.waiting_reason and pod.ended is None)
    troubled = [*dict.fromkeys(f"{pod.name}: {pod.waiting_reason}" for pod in waiting)]  # some share a pod
    more = f" (and {len(troubled) - 1} more)" if len(troubled) > 1 else ""
    return troubled[0] + more if troubled else ""


def _scheduled(pods: Sequence[Pod], refused: Finish | str | None, phase: Phase, stamp: str) -> Condition:
    if isinstance(refused, str):
        return condition("PodsScheduled", "False", "PodsRefused", refused, stamp)
    waiting = [pod for pod in pods if not pod.scheduled and pod.ended is None]
    if waiting:
        reason, message = _unplaced(pods, waiting, phase)
        return condition("PodsScheduled", "False", reason, message, stamp)
    return condition("PodsScheduled", "True", "Scheduled", "", stamp)


def _unplaced(pods: Sequence[Pod], waiting: Sequence[Pod], phase: Phase) -> tuple[str, str]:
    """Reason and message of pods without a node. Of two jobs that each have some pods scheduled, either may wait for
    the other for ever; a job that runs waits for no other."""
    if gated := [pod for pod in waiting if pod.gated]:
        return GATED, waiting_reason(gated, None)
    holding, explanation = (
        [pod for pod in pods if pod.node and pod.ended is None],
        waiting_reason(waiting, None),
    )
    if not holding or phase == "Running":
        return "Unschedulable", explanation
    advice = "set spec.scheduling.gang, or spec.scheduling.preRunningDeadlineSeconds to let go of them"
    return "PartlyScheduled", f"{explanation}; {len(holding)} other pods hold their nodes meanwhile: {advice}"


def failed_condition(reason: str, message: str, stamp: str) -> Condition:
    """Stalled: nothing that the operator does helps the job; kstatus and its clients treat it as failed."""
    return condition("Stalled", "True", reason, message, stamp)


def _stalled(
    state: ReconcileState, silent_since: float | None, status: JobStatus, phase: Phase, stamp: str, now: float
) -> Condition:
    """Stalled, with kstatus semantics: the first reason why the job makes no progress. A job that trains with at least
    one server of each role, and of each teacher, goes on without those that still wait; RolesReady and PodsScheduled
    tell of them."""
    pods, refused = state.pods, state.observed.refused
    if silent_since is not None and now >= silent_since + SILENT_SECONDS:
        since = time_text(datetime.datetime.fromtimestamp(silent_since, datetime.UTC))
        error = state.observed.trainer_error
        message = f"since {since}: {error}" if error else f"the trainer's pod has not answered since {since}"
        return condition("Stalled", "True", "TrainerUnreachable", message, stamp)
    for pod in (pod for pod in pods if is_lost(pod, now)):
        message = f"{pod.name} should have ended, and its node {pod.node} has not confirmed it; the pod counts as lost"
        return condition("Stalled", "True", "NodeLost", message, stamp)
    for pod in (pod for pod in pods if is_held_by_finalizer(pod, now)):
        message = (
            f"{pod.name} has ended and is deleted, but its finalizer keeps it, and its name: {pod.held_by}"
        )
        return condition("Stalled", "True", "PodHeld", message, stamp)
    if isinstance(refused, str):
        return condition("Stalled", "True", "PodsRefused", refused, stamp)
    if phase == "Running" and all(role.can_serve for role in status.roles.values()):
        return stalled(state.stall, stamp)
    living = [pod for pod in pods if pod.ended is None]
    if waiting := [pod for pod in living if not pod.scheduled]:
        return condition("Stalled", "True", *_unplaced(living, waiting, phase), stamp)
    for pod in (pod for pod in living if pod.waiting_reason):
        reason = (pod.waiting_reason or "").partition(":")[0]
        return condition("Stalled", "True", reason, waiting_reason([pod], None), stamp)
    return stalled(state.stall, stamp)


def _suspended(finish: Finish | None, suspending: bool, stamp: str) -> Condition:
    if finish is not None and finish.phase == "Suspended":
        return condition("Suspended", "True", finish.reason, finish.message, stamp)
    if suspending:
        return condition("Suspended", "False", "Suspending", "waiting for the trainer's checkpoint", stamp)
    return condition("Suspended", "False", "NotSuspended", "", stamp)
