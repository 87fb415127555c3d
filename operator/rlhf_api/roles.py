"""Roles of a job, and what a host must know of each."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from .field_types import Head, ModelField

HEALTH = "/health"
"""GET on every role, without a token."""
PROGRESS = "/progress"
"""GET on the trainer, without a token: answers while it makes progress."""
LIVE_SECONDS, LIVE_FAILURES, LIVE_TIMEOUT_SECONDS = 20, 6, 5
"""Liveness of a process that serves: how often it is asked, after how many failures in a row it is ended and started
again, and the deadline of an answer, for which it may ask its workers."""

HUNG_GRACE_SECONDS = 30
"""Grace period of a trainer that has made no progress, which will make no checkpoint either."""


@dataclass(frozen=True, kw_only=True)
class RoleRow:
    """Properties of a role that decide how a host runs it; paths are those of HTTP GET requests without a token."""

    work: Literal["train", "generate", "score", "infer", "play", "run"]
    """Nodes of the graph that its processes run. `train`: ranks under torchrun, one GPU each. `generate`: vLLM, whose
    GPUs hold a KV cache and new weights too. `score` and `infer`: one frozen model on one GPU, without gradients.
    `play`: environments, whose code need not be trusted. `run`: what the policy wrote, in an image of the user's."""
    model: ModelField | None = None
    """Field of `spec.model` of its frozen model."""
    head: Head = "causal"
    """Output of that model."""
    or_policy: bool = False
    """True if the role holds the policy of the start of the run where that field is not set."""
    grace_seconds: int = 15
    """Grace period from SIGTERM to SIGKILL of a deleted pod, seconds."""
    ready: str = HEALTH
    """Path that answers while the process serves."""
    live: str | None = HEALTH
    """Path that answers unless the process hangs; None: no liveness probe."""
    progress: str | None = None
    """Path that answers while the process makes progress, as `progressDeadlineSeconds` counts it: what ends its
    container alone in a pod that others share."""
    drain: str | None = None
    """Path called before SIGTERM; answers when the last request is done and the trainer knows that the process is
    draining.
    """


class Role(StrEnum):
    """A fault domain: its processes are started, restarted and counted together.

    Its section of the manifest and its module in `rlhf_trainer.roles` have its name; everything else in which a host
    tells roles apart is in its row.
    """

    row: RoleRow

    def __new__(cls, name: str, row: RoleRow | None = None) -> "Role":
        if row is None:
            raise TypeError(f"role {name!r} has no row")
        role = str.__new__(cls, name)
        role._value_, role.row = name, row
        return role

    # The trainer makes a checkpoint when it is asked to end; an update may keep it from answering for minutes.
    TRAINER = "trainer", RoleRow(work="train", grace_seconds=300, live=None, progress=PROGRESS)
    GENERATOR = (
        "generator",
        RoleRow(work="generate", grace_seconds=120, ready="/ready", live="/live", drain="/drain"),
    )
    REWARD = "reward", RoleRow(work="score", model="reward", head="score")
    REFERENCE = "reference", RoleRow(work="infer", model="reference", or_policy=True)
    ENVIRONMENT = "environment", RoleRow(work="play")
    SANDBOX = "sandbox", RoleRow(work="run", grace_seconds=5)


UNTRUSTED = (Role.ENVIRONMENT, Role.SANDBOX)
"""Roles whose pods run code that need not be trusted: each is apart from all others, and has a token that opens none of
them."""


def holder(model: ModelField) -> Role | None:
    """The role that holds the frozen model of this field of `spec.model`."""
    return next((role for role in Role if role.row.model == model), None)
