"""Jobs that cannot be planned: the spec or a pod made of it is invalid, or another release wrote the status; pure.

The status of the run so far is kept: the run resumes from there once the spec is corrected.
"""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_api.contract.status import ENDED, INVALID_POD, INVALID_SPEC, JobStatus
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.spec import Spec

from ...console.text import time_text
from ...job.names import QUEUE
from ...job.snapshot import Job, Pod
from ...kube.api_error import ApiError
from ...kube.kinds import KUEUE
from ...status.condition import LONGEST, condition, observed, reason, refused, with_times
from ...supervision.process_state import Finish
from .conditions import failed_condition
from .consequences import deletion
from .describe import Event
from .next_step import POLL_SECONDS, Plan, deletions, seconds_until_ttl
from .stopping import ASK_AGAIN_SECONDS
from .usage import stop_counting

_DENIED = re.compile(r"denied (the )?request")
"""Pattern of refusals by admission: `admission webhook "x" denied the request: ...`, `ValidatingAdmissionPolicy 'x'
with binding 'y' denied request: ...`."""
_NO_POD = "cannot be handled as a Pod"
"""The API server's words for a body that it cannot read: a field of the template has a value of another type."""

_OF_CLUSTER = ("PriorityClass", "ResourceFlavor", "WorkloadPriorityClass")
"""Kinds in no namespace that a job in a queue needs: without a flavor's node labels it would run beside its quota."""


@dataclass(frozen=True)
class Refusal:
    """The API server's refusal of the objects that were to be created last."""

    generation: int
    """Generation of the spec that the pods were made of."""
    why: Finish | str


def by_server(error: ApiError, *, accepted: bool = False) -> Finish | str:
    """The API server's refusal of an object of the job: the job's end if it is a pod that can never be accepted. A
    policy or a webhook may change, and answers with the same code; other objects are refused for their present state,
    such as a Workload that was admitted a moment ago. If pods of the job's configuration were `accepted` before, what
    has changed since is not the job."""
    status, kind, message = error.status, error.kind, f"{error.reason}: {error.message}"
    invalid = status == 422 or (status == 400 and _NO_POD in message)
    if invalid and kind == "Pod" and not accepted and not _DENIED.search(message):
        explanation = f"the API server rejects the pod, check spec.pods and its template: {message}"
        return Finish("Failed", INVALID_POD, explanation)
    return f"pods cannot be created: {refusal_message(error)}"


def refusal_message(error: ApiError) -> str:
    """The API server's words, and what to do about those that have a known cause."""
    status, kind, message = error.status, error.kind, f"{error.reason}: {error.message}"
    if error.not_served and kind == "Workload":
        message += f"; the label {QUEUE} needs Kueue 0.15 or later, which serves {KUEUE}"
    if error.not_served and kind == "ResourceClaimTemplate":
        message += "; pods.gpu.deviceClass needs Kubernetes 1.34 or newer"
    if status == 403 and kind in _OF_CLUSTER:
        message += "; with the chart's watchNamespaces, its value rbac.clusterReads lets the operator read it"
    return f"{status or 'no answer'} {message}"


def leave_alone(problem: str) -> Plan:
    """Reports what this release cannot read, and changes nothing until it can or another release takes over."""
    message = f"this release cannot read the job's state, so job and pods are left as they are: {problem}"
    return Plan(status=None, events=(Event("Warning", "Unreadable", message[:LONGEST]),), again=None)


def invalid_spec(error: InvalidJob) -> Event:
    """Tells the problems of a spec."""
    message = "; ".join(map(str, error.problems))[:LONGEST]
    if len(error.problems) > 1:
        message = f"{len(error.problems)} problems: {message}"[:LONGEST]
    return Event("Warning", INVALID_SPEC, message)


def refuse(job: Job, error: InvalidJob, pods: Sequence[Pod], now: datetime.datetime) -> Plan:
    """Fails a job whose spec is invalid and that has no configuration of a run to continue with; it has no pods. A job
    that had ended before is unchanged."""
    before, events = job.status, tuple[Event, ...]()
    over = before is not None and before.phase in ENDED
    if before is None or not over or (refused(before) and before.observed_generation != job.generation):
        event = invalid_spec(error)
        before = _failed(before or JobStatus(phase="Pending", total_steps=0), job, event.message, now)
        events = (event,)
    else:
        before = observed(before, job.generation)
    living = [pod for pod in pods if not pod.over]
    # One that can be corrected stays; for any other, what follows its end does not need a valid spec.
    left = seconds_until_ttl(job, before, now)
    expire = left is not None and left <= 0
    return Plan(
        status=before.model_copy(update=stop_counting(before, pods, now)),
        delete=deletions([deletion(pod) for pod in living], pods, now),
        events=events,
        queue=None if living else "leave",
        expire=expire,
        again=POLL_SECONDS if living else left if not expire else None,
    )


def is_retried(job: Job, now: datetime.datetime) -> bool:
    """True if it is time to ask whether the API server takes the pods of a job that it refused as invalid: what a
    LimitRange or a webhook of its namespace has made of them looks the same, and may be another by now."""
    status = job.status
    if status is None or status.observed_generation != job.generation or status.completion_time is None:
        return False
    ended = datetime.datetime.fromisoformat(status.completion_time)
    return reason(status, "Failed") == INVALID_POD and (now - ended).total_seconds() >= ASK_AGAIN_SECONDS


def reopen_job(job: Job, spec: Spec, *, accepted: bool = False) -> Job:
    """A refused job whose spec is valid now, as it was before; one that had run resumes. Its spec may be the same:
    another release, or one with other limits, refused it. After an invalid pod it has to be another one, unless its
    pods are `accepted` now."""
    status = job.status
    if status is None or not refused(status):
        return job
    same = status.observed_generation == job.generation
    if same and not accepted and reason(status, "Failed") != INVALID_SPEC:
        return job
    cluster = status.cluster
    begun = cluster is not None and cluster.attempt > 0 and cluster.attempt != cluster.unmade
    changes = {
        "phase": "Suspended" if begun else "Pending",
        "message": "",
        "start_time": None,
        "completion_time": None,
        "total_steps": spec.steps,
        "conditions": tuple(c for c in status.conditions if c.type != "Failed"),
    }
    return replace(job, status=status.model_copy(update=changes))


def _failed(before: JobStatus, job: Job, message: str, now: datetime.datetime) -> JobStatus:
    stamp = time_text(now)
    made = (
        condition("Failed", "True", INVALID_SPEC, message, stamp),
        condition("Ready", "False", INVALID_SPEC, message, stamp),
        failed_condition(INVALID_SPEC, message, stamp),
    )
    failed = [c.model_copy(update={"observed_generation": job.generation}) for c in made]
    others = [c for c in before.conditions if c.type not in {c.type for c in made}]
    return before.model_copy(
        update={
            "phase": "Failed",
            "message": message,
            "observed_generation": job.generation,
            "completion_time": stamp,
            "conditions": with_times([*others, *failed], before.conditions),
        }
    )
