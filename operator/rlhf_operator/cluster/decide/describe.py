"""Builds a job's status and events from what was observed and decided; pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_api.contract.run import pods_each, roles_of, shares_pod
from rlhf_api.contract.status import JobStatus, Phase, RuntimeStatus
from rlhf_api.estimate.resources import plan as resource_plan
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ...console.text import time_text
from ...job.names import RANK, role_labels, selector
from ...job.snapshot import Pod
from ...status.condition import LONGEST, is_true, with_times
from ...status.job_status import NO_PROGRESS, job_status, new_breach
from ...supervision.process_state import ProcessState
from ..objects.pod_container import MODEL_CACHE
from ..observe.observed import Observed
from .conditions import ReconcileState, conditions, waiting_reason
from .usage import count_usage

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


def describe(state: ReconcileState) -> tuple[JobStatus, tuple[Event, ...]]:
    """The new status, and events for what has changed since the last one."""
    observed, pods, finish = state.observed, state.pods, state.finish
    job, spec = observed.job, observed.desired.spec
    before = state.before.model_copy(update={"start_time": None}) if state.resumed else state.before
    status = job_status(
        spec,
        state.processes,
        state.restarts,
        observed.trainer,
        before=before,
        now=state.now,
        finish=finish,
        ended=[
            ProcessState(pod.role, pod.index, ended=pod.ended, rank=pod.rank, node=pod.node or "")
            for pod in (*pods, *observed.deleted_pods)
        ],
    )
    reason = waiting_reason(pods, observed.refused)
    message = (
        "suspending: waiting for the trainer's checkpoint"
        if state.suspending
        else _join(status.message, reason, _filling(pods))
    )
    firsts = [pod for pod in pods if pod.role is Role.GENERATOR and pod.rank == 0]
    coming = sum(new.role is Role.GENERATOR and new.rank == 0 for new in state.creating)
    if shares_pod(spec) and state.creating:
        coming = spec.generator.replicas
    generators = 0 if finish else coming + sum(pod.ended is None for pod in firsts)
    has_generators = Role.GENERATOR in roles_of(spec)
    phase = finish.phase if finish else _phase(status.phase, state)
    status = status.model_copy(
        update={
            "phase": phase,
            "message": message[:LONGEST],
            "observed_generation": job.generation,
            "generator_replicas": generators,
            "selector": _selector(job.name, spec) if has_generators else "",
            "plan": resource_plan(spec),
            **count_usage(before, pods, spec, observed.prices, state.now),
            "cluster": state.cluster.model_copy(
                update={"provisioning_since": _provisioning_since(phase, state)}
            ),
            "runtime": before.runtime if finish else _runtime(observed),
            "conditions": with_times(conditions(status, phase, state), before.conditions),
        }
    )
    return status, tuple(_events(status, reason, state))


def _selector(job: str, spec: Spec) -> str:
    """Selects one pod of each generator, so that autoscalers count the same as `replicas`."""
    first = {RANK: "0"} if pods_each(spec, Role.GENERATOR) > 1 else {}
    return selector({**role_labels(job, Role.GENERATOR), **first})


def _runtime(observed: Observed) -> RuntimeStatus | None:
    runtime = observed.desired.pinned.defaults.runtime
    if runtime is None:
        return None
    return RuntimeStatus(kind=runtime.kind, name=runtime.name, generation=runtime.generation)


def _phase(phase: Phase, state: ReconcileState) -> Phase:
    if state.suspending:
        return state.before.phase  # its trainer may have ended already, and nothing is being started
    if phase == "Pending" and state.creating:
        return "Provisioning"
    alive = any(p.role is Role.TRAINER and p.started and not p.ended for p in state.processes)
    if (
        phase == "Provisioning"
        and state.before.phase == "Running"
        and state.observed.trainer is None
        and alive
    ):
        return "Running"  # only the operator has lost the connection
    return phase


def _provisioning_since(phase: Phase, state: ReconcileState) -> str | None:
    """Time since which the job is provisioning, from the status that first says so: a time added later would be a write
    of its own. None for a trainer that is started again: the job has trained, and must not fail for want of a node."""
    if phase != "Provisioning" or state.suspending:
        return None
    begins = state.before.phase in ("Pending", "Suspended")
    return time_text(state.now) if begins else state.cluster.provisioning_since


def _filling(pods: Sequence[Pod]) -> str:
    """Pods whose models are being downloaded into the cache."""
    filling = [
        (pod.name, pod.initializing)
        for pod in pods
        if pod.initializing and pod.initializing.startswith(MODEL_CACHE) and pod.ended is None
    ]
    if not filling:
        return ""
    more = f" (and {len(filling) - 1} more)" if len(filling) > 1 else ""
    name, container = filling[0]
    return f"{name}{more} fills the model cache: `kubectl logs {name} -c {container}`"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _events(status: JobStatus, waiting_reason: str, state: ReconcileState) -> list[Event]:
    events, before, finish, ignored = (
        list[Event](),
        state.before,
        state.finish,
        state.observed.desired.ignored,
    )
    if ignored:
        events.append(Event("Warning", "SpecChangeIgnored", ignored))
    events += [
        Event("Warning", *warning) for kind, warning in state.warnings.items() if not is_true(before, kind)
    ]
    if state.stall and not any(c.reason == NO_PROGRESS for c in before.conditions):
        events.append(Event("Warning", NO_PROGRESS, state.stall))
    if waiting_reason:
        alike = _FIGURE.sub("", waiting_reason)
        events.append(Event("Warning", "PodsWaiting", waiting_reason, alike))
    for process in state.processes:
        earlier = before.roles.get(process.role)
        if process.ended and earlier and status.roles[process.role].restarts > earlier.restarts:
            events.append(Event("Warning", "PodFailed", f"{process.name} {process.ended.reason}"))
    if status.health and new_breach(status.health, before.health):
        events.append(Event("Warning", status.health.reason, status.health.message))
    if state.resumed:
        events.append(Event("Normal", "Resumed", f"resumed from step {status.step}"))
    if status.phase == before.phase:
        return events
    if finish is not None:
        kind: Literal["Normal", "Warning"] = "Warning" if finish.phase == "Failed" else "Normal"
        message = finish.message or f"{status.step}/{status.total_steps} steps"
        events.append(Event(kind, finish.reason if finish.phase == "Failed" else finish.phase, message))
    elif status.phase == "Running":
        events.append(Event("Normal", "Running", "the trainer is running"))
    return events
