"""What is told about a running job: by the trainer to its host, and by the host in `status`."""

from typing import Literal

from pydantic import Field

from .base import Report
from .roles import Role

Phase = Literal["Pending", "Provisioning", "Running", "Suspended", "Succeeded", "Failed"]


class MemberStatus(Report):
    """A process that serves the trainer, as the trainer sees it."""

    role: Role
    name: str
    uid: str
    ready: bool
    weight_version: int | None = None
    """Generators: the version they serve."""
    epoch: int | None = None
    """Generators: the membership epoch they were last part of."""
    last_sync_time: str | None = None


class CheckpointStatus(Report):
    """A checkpoint that can be resumed from."""

    step: int
    time: str
    uri: str


class TrainerStatus(Report):
    """What the trainer's control API answers."""

    activity: str
    """What it is doing now, in a word or two: `starting`, `generating`, `training` ..."""
    step: int = 0
    total_steps: int
    episode: int = 0
    reward_mean: float | None = None
    kl_mean: float | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_per_step: float | None = None
    """Mean over the last steps."""
    weight_version: int = 0
    last_checkpoint: CheckpointStatus | None = None
    members: tuple[MemberStatus, ...] = ()


class Condition(Report):
    """A standard Kubernetes condition."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = Field("", max_length=1024)
    last_transition_time: str
    observed_generation: int = 0


class RoleStatus(Report):
    """How a role stands."""

    desired: int
    ready: int
    restarts: int = 0


class JobStatus(Report):
    """`status` of an RLHFJob; on one machine, `status.json`."""

    phase: Phase
    message: str = Field("", max_length=1024)
    observed_generation: int = 0
    start_time: str | None = None
    completion_time: str | None = None
    estimated_end: str | None = None
    activity: str | None = None
    step: int = 0
    total_steps: int
    reward: float | None = None
    kl: float | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    weight_version: int = 0
    last_checkpoint: CheckpointStatus | None = None
    roles: dict[Role, RoleStatus] = {}
    generators: tuple[MemberStatus, ...] = ()
    conditions: tuple[Condition, ...] = ()
