"""The trainer's report to its host, served by its control API."""

from typing import Annotated

from pydantic import Field, ValidationError

from ..field_types import Report
from ..roles import Role

# A trainer's report must fit into an object of the API server.
Word = Annotated[str, Field(max_length=256)]
STARTING = "starting"
"""Prefix of the activity of a trainer that is not ready for a step; a colon and what it does follow."""
Text = Annotated[str, Field(max_length=2048)]
LARGEST_COUNT = 2**53 - 1
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]


STORE_FAILS = "the checkpoint store fails, trying again"
"""Begins the activity of a trainer whose store fails; the reason follows."""


class MemberStatus(Report):
    """A process that serves the trainer, as known to the trainer."""

    role: Role
    name: Word
    uid: Word
    ready: bool
    weight_version: Count | None = None
    """Generators: weight version served."""
    epoch: Count | None = None
    """Generators: membership epoch last joined."""
    last_sync_time: Word | None = None


class CheckpointStatus(Report):
    """A checkpoint that can be resumed from."""

    step: Count
    time: Word
    uri: Text


class LedgerStatus(Report):
    """Counts of the present data epoch's prompts by state; each is trained on exactly once."""

    epoch: Count
    issued: Count
    returned: Count
    """Prompts whose responses have arrived."""
    trained: Count
    requeued: Count
    """Prompts sent again, because their generator failed."""
    filtered: Count = 0
    """Prompts filtered out by dynamic sampling."""
    dropped: Count
    """Prompts dropped in the whole run; the log has the reasons."""
    lost: Count
    """Prompts of the whole run that are neither trained on, filtered, dropped nor in progress; must be 0."""


class HealthStatus(Report):
    """The newest step at which a rule of `spec.health` acted."""

    step: Count
    since: Count
    """First of the consecutive steps up to this one that broke the rule."""
    reason: Word
    """Such as `NotFinite` or `MetricAbove`."""
    action: Word
    message: Text
    rollbacks: Count = 0
    """Rollbacks and pauses of the whole run."""


class TrainerStatus(Report):
    """The trainer's report, served by its control API."""

    activity: Word
    """Present activity, in a word or two: `starting`, `generating`, `training` ..."""
    progress_count: Count | None = None
    """Signs of progress so far: tokens, scores, micro-batches, tensors ...; None from earlier releases."""
    step: Count = 0
    total_steps: Count
    episode: Count = 0
    reward_mean: float | None = None
    kl_mean: float | None = None
    loss: float | None = None
    tokens_per_second: float | None = None
    seconds_per_step: float | None = None
    """Mean over the last steps, seconds."""
    weight_version: Count = 0
    staleness: float | None = None
    """Weight versions between sampling and training, mean over the last step's tokens."""
    staleness_max: float | None = None
    staleness_bound: Count | None = None
    """The job's `rollout.maxStaleness`."""
    trainer_idle: float | None = None
    """Share of the last step in which the trainer waited for responses."""
    generator_idle: float | None = None
    """Share of the last step in which no generator had a request."""
    responses_continued: float | None = None
    """Responses of the last step that were interrupted and that another request went on with."""
    importance_effective: float | None = None
    """Effective sample size (Kish) of the last step's importance weights, as a share of its tokens."""
    queue: Count | None = None
    """Prompts of the step without responses yet."""
    unscored: Count | None = None
    """Responses that the trainer waits for the rewards of."""
    last_checkpoint: CheckpointStatus | None = None
    ledger: LedgerStatus | None = None
    health: HealthStatus | None = None
    over_tcp: Text | None = None
    """Reason why NCCL uses TCP on rank 0's node although the job requests RDMA."""
    data_changed: Text | None = None
    """Sources whose rows have changed since the checkpoint that the trainer went on from."""
    overlong: Text | None = None
    """Rows beyond a limit, which are left out or cut."""
    trackers_failed: tuple[Text, ...] = Field((), max_length=8)
    """Errors of trackers that did not get every figure of this trainer, one each."""
    members: tuple[MemberStatus, ...] = Field((), max_length=3000)


_LONG = {"members", "over_tcp", "data_changed", "overlong", "trackers_failed", "health"}


def last_words(status: TrainerStatus) -> str:
    """The report of a trainer that ends, as one line of JSON for its termination message: the host may not have asked
    since the last step and its checkpoint. Without the fields that may be too long for one; those are older."""
    return status.model_dump_json(by_alias=True, exclude_none=True, exclude=_LONG)


def with_last_words(status: TrainerStatus | None, message: str) -> TrainerStatus | None:
    """The last report that was read, with the fields that the termination message has; the report alone if that has
    none."""
    try:
        words = TrainerStatus.model_validate_json(message.rpartition("\n")[2])
    except ValidationError:
        return status
    if status is None:
        return words
    return status.model_copy(update={name: getattr(words, name) for name in words.model_fields_set})
