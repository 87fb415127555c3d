"""Status of a job, as its host keeps it: the `status` of an RLHFJob, or `status.json`."""

import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ..field_types import Report
from ..roles import Role
from .report import CheckpointStatus, Count, HealthStatus, LedgerStatus, MemberStatus, Text, Word

Phase = Literal["Pending", "Provisioning", "Running", "Suspended", "Succeeded", "Failed"]
ENDED: tuple[Phase, ...] = ("Succeeded", "Failed")
"""Phases of a job that has ended for good; a suspended one goes on."""
INVALID_POD, INVALID_SPEC = "InvalidPod", "ValidationFailed"
CORRECTABLE = (INVALID_POD, INVALID_SPEC)
"""Reasons of the `Failed` condition that a change of the spec may remove."""


def _rfc3339(text: str) -> str:
    if datetime.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("has no time zone")
    return text


Time = Annotated[Word, AfterValidator(_rfc3339)]
"""An RFC 3339 time, such as 2026-01-01T00:00:00Z."""


class Condition(Report):
    """A standard Kubernetes condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = Field("", max_length=1024)
    last_transition_time: str
    observed_generation: int = 0


class FailureStatus(Report):
    """The end of a failed process, kept when its pod is gone."""

    process: Word
    node: Word = ""
    """On a cluster: where it ran."""
    time: Time
    reason: Text
    log: Text
    """The last lines of the process's log, without secrets."""


class TeacherStatus(Report):
    """Processes of one teacher of several, in the reference role."""

    name: Word
    first: int
    """Index of its first process; its others follow."""
    desired: int
    ready: int

    @property
    def processes(self) -> str:
        last = f" to {self.first + self.desired - 1}" if self.desired > 1 else ""
        return f"{Role.REFERENCE.value}-{self.first}{last}"


class RoleStatus(Report):
    """Processes of a role."""

    desired: int
    ready: int
    restarts: int = 0
    """Restarts counted against `backoffLimit`; those after a disruption are not."""
    teachers: tuple[TeacherStatus, ...] | None = Field(None, max_length=16)
    """Of a job with teachers by name."""
    last_failure: FailureStatus | None = None

    @property
    def can_serve(self) -> bool:
        """True if a process is ready, of each teacher where there are several."""
        return self.ready > 0 and all(each.ready for each in self.teachers or ())


class RolePlan(Report):
    """Resources of a role's pods."""

    pods: int
    gpus: int = 0
    memory: str | None = None
    """Minimum memory of one GPU, with the arithmetic."""


class RuntimeStatus(Report):
    """The runtime of the job's pods, as of their start."""

    kind: Word
    name: Word
    generation: Count


class RestartWindow(Report):
    """Restarts of a role in the present window of its restart budget."""

    failures: Count = 0
    """Restarts counted against `backoffLimit`."""
    disruptions: Count = 0
    """Restarts not counted."""
    since: Time
    last: Time
    cause: Text = ""
    """The error before the last counted restart, and its step, if it would come again."""


class ScalingStatus(Report):
    """Measured steps since the number of generators last changed."""

    replicas: Count
    step: Count
    """Last step evaluated."""
    wanted: tuple[Count, ...] = Field((), max_length=8)
    """Generators that each of the last steps would have needed."""


class ClusterStatus(Report):
    """The operator's state of the job."""

    attempt: int = 0
    """Starts of the trainer gang, also a label of its pods."""
    unmade: int | None = None
    """Attempt whose trainer pods were not all seen on their nodes, so that it has trained nothing."""
    config: str | None = None
    """Name of the ConfigMap with the configuration of the running pods."""
    counted: tuple[str, ...] = ()
    """Uids of ended pods that are counted in `restarts` and not replaced yet."""
    restarts: dict[Role, RestartWindow] = {}
    provisioning_since: Time | None = None
    """Time since which pods exist and the trainer does not train yet."""
    progress_time: Time | None = None
    """Last start of the trainer, or report of progress."""
    progress_count: Count | None = None
    """The trainer's count of signs of progress at `progress_time`."""
    scaling: ScalingStatus | None = None
    suspend_requested: Time | None = None
    """First request to the trainer to checkpoint and exit."""
    checkpoint_requested: str | None = None
    """Last value of `rlhf.dev/checkpoint` that the trainer accepted."""


class JobStatus(Report):
    """`status` of an RLHFJob; on one machine, `status.json`."""

    phase: Phase
    message: str = Field("", max_length=1024)
    observed_generation: int = 0
    start_time: Time | None = None
    completion_time: Time | None = None
    estimated_end: str | None = None
    activity: Word | None = None
    step: Count = 0
    total_steps: Count
    reward: float | None = None
    kl: float | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    weight_version: Count = 0
    staleness: float | None = None
    staleness_max: Count | None = None
    staleness_bound: Count | None = None
    trainer_idle: float | None = None
    generator_idle: float | None = None
    responses_continued: Count | None = None
    importance_effective: float | None = None
    queue: Count | None = None
    unscored: Count | None = None
    restarts: int = 0
    """Restarts of all roles."""
    gpus: Count = 0
    """GPUs of the job's pods that are scheduled on a node now."""
    gpu_seconds: Count | None = None
    """GPU-seconds used up to `usage_time`."""
    cost: float | None = None
    cost_per_hour: float | None = None
    usage_time: Time | None = None
    last_checkpoint: CheckpointStatus | None = None
    ledger: LedgerStatus | None = None
    overlong: str | None = None
    """Rows beyond a limit, which are left out or cut."""
    trackers_failed: tuple[Text, ...] = Field((), max_length=8)
    health: HealthStatus | None = None
    roles: dict[Role, RoleStatus] = {}
    generator_replicas: int = 0
    """Existing generator processes, for `kubectl scale` and autoscalers."""
    selector: str = ""
    """Label selector of the generator pods, for autoscalers."""
    generators: tuple[MemberStatus, ...] = Field((), max_length=128)
    plan: dict[Role, RolePlan] = {}
    runtime: RuntimeStatus | None = None
    cluster: ClusterStatus | None = None
    conditions: tuple[Condition, ...] = ()
