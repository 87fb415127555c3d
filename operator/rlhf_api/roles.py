"""The roles of a job: what the manifest says of each (`RoleSpec`), and what a host knows of it (`Role`)."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from .base import (
    REASON,
    DType,
    Frozen,
    HttpUrl,
    ImportPath,
    NonNegativeFloat,
    Positive,
    RewardName,
    Variable,
)
from .deepspeed import DeepSpeedConfig
from .pods import PodSettings

ExitCode = Annotated[int, Field(ge=0, le=255)]
Reason = Annotated[str, Field(pattern=REASON, max_length=128)]


class FailureRule(Frozen):
    """Action after an end of a process with one of these exit codes, or for one of these reasons."""

    action: Literal["FailJob", "Ignore", "Count"]
    """The job fails at once; or the process is started again, without being counted, or counted."""
    exit_codes: tuple[ExitCode, ...] = Field((), max_length=64)
    """From 129 on, 128 plus a signal."""
    reasons: tuple[Reason, ...] = Field((), max_length=16)
    """On a cluster: those of the container or the pod, such as `OOMKilled`, `Error` or `Evicted`."""

    @model_validator(mode="after")
    def _fits_something(self) -> "FailureRule":
        if not self.exit_codes and not self.reasons:
            raise ValueError("names neither exitCodes nor reasons, so it fits no end")
        return self


class RoleSpec(Frozen):
    """Settings of every role."""

    replicas: int = Field(1, ge=1, le=1000)
    dtype: DType | None = None
    """The job's `model.dtype` unless given."""
    backoff_limit: int = Field(3, ge=0)
    """Most restarts of this role's processes, all together, within `backoffWindowSeconds`. After that the job fails,
    unless others of the role still serve: then one that fails waits for up to five minutes each time."""
    backoff_window_seconds: Positive = 3600
    """From the first restart on; later ones begin a new window, with the whole of `backoffLimit`."""
    failure_rules: tuple[FailureRule, ...] = Field((), max_length=16)
    """The first that fits says what follows from an end. Without one, it is counted unless the node was drained, lost
    or wanted by others, and exit code 78 fails the job."""
    startup_timeout_seconds: Positive = 600
    """Deadline of a process to answer after its start."""
    pods: PodSettings = PodSettings()
    """On a cluster: added to `spec.pods`."""


Attention = Literal["auto", "packed", "padded"]
Kernels = Literal["auto", "liger", "torch"]
GradientCheckpointing = Literal["none", "selective", "full"]


class Trainer(RoleSpec):
    """DeepSpeed under torchrun: `replicas` nodes of `processesPerReplica` ranks."""

    processes_per_replica: Positive = 1
    progress_deadline_seconds: Positive | None = None
    """On a cluster: a trainer that makes no step for so long is started again, and that is counted. For the budget to
    be used up by it, `backoffWindowSeconds` has to be several times as long."""
    micro_batch_tokens: Positive = 16384
    """Upper bound of the tokens, with their padding, that one rank forwards at once."""
    attention: Attention = "auto"
    """`packed`: sequences of different lengths end to end, without padding, where a trial at the start shows that the
    model computes the same; `padded`: each filled up to the longest beside it. `auto`: packed on GPUs where that holds,
    else padded. Reference and reward models by token follow it too."""
    kernels: Kernels = "auto"
    """`liger`: fused norms, rotary embedding and SwiGLU; `torch`: the model's own. `auto`: Liger's on GPUs, where it is
    installed and knows the model."""
    gradient_checkpointing: GradientCheckpointing = "none"
    """Activations that the backward pass computes again, to save memory: of no layer, `selective` all but the outputs
    of matrix products and attention, or `full`, all."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()


class Generator(RoleSpec):
    """vLLM servers."""

    shared_with_trainer: bool = False
    """Generate in the trainer; no generator process is started."""
    tensor_parallel_size: Positive = 1
    concurrent_requests: Positive = 256
    """Requests in flight for each generator."""
    timeout_seconds: Positive = 600
    """Deadline of a prompt's next token; it is asked for again then, and dropped after three times."""
    engine_arguments: dict[str, JsonValue] = {}
    """Further options of `vllm serve`, without the dashes: `{gpu-memory-utilization: 0.8}`."""


class ModelServerSpec(RoleSpec):
    """A server of forward passes, asked by the trainer for chunks of responses."""

    timeout_seconds: Positive = 120
    """Deadline of one chunk of responses, of at most `trainer.microBatchTokens`; three tries."""


RESERVED_HEADERS = (
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "host",
    "transfer-encoding",
)
"""Headers that say how a request is sent."""


class RewardProgram(Frozen):
    """A command that reads a response on stdin, in a sandbox without network; exit code 0 scores 1, any other 0."""

    command: tuple[str, ...] = Field(min_length=1, max_length=64)
    """The program and its arguments. It sees the job's directory as `/job`, and the dataset's row as `row.json`."""
    memory_megabytes: Positive = 512
    """Address space of each of its processes, of which there may be 32."""
    cpu_seconds: Positive = 10
    """Of each of its processes; more is the response's own doing, and `timeoutSeconds` without it a failure."""


class RewardFunction(Frozen):
    """A score of each response by a Python function, in processes of its own, by an HTTP service, or by a program."""

    name: RewardName | None = None
    """Its name in the metrics; the Python function's unless given."""
    function: ImportPath | None = None
    """`(prompts, responses, rows) -> list of float`."""
    url: HttpUrl | None = None
    """Address that responses are posted to, many at once; docs/rewards.md has the messages."""
    secret_headers: dict[str, Variable] = Field({}, max_length=16)
    """Headers of each request to `url`, such as Authorization: for each the environment variable of the reward role
    that holds its value, which no manifest and no log does."""
    program: RewardProgram | None = None
    weight: float = 1.0
    timeout_seconds: Positive = 30
    """Time limit of one call. One for several responses that fails is made again for each of them alone."""
    retries: int = Field(2, ge=0, le=100)
    """Tries of a response that failed, after the first, before it is left out of training."""
    concurrency: int = Field(4, ge=1, le=256)
    """Calls at once; of a Python function, in as many processes."""

    @model_validator(mode="after")
    def _scores_in_one_way(self) -> "RewardFunction":
        ways = [name for name in ("function", "url", "program") if getattr(self, name) is not None]
        if len(ways) != 1:
            seen = " and ".join(ways) or "none"
            raise ValueError(f"needs exactly one of function, url and program; got {seen}")
        if self.function is None and self.name is None:
            raise ValueError("needs a name, under which its scores stand in the metrics")
        return self

    @model_validator(mode="after")
    def _sends_what_it_may(self) -> "RewardFunction":
        if self.secret_headers and self.url is None:
            raise ValueError("secretHeaders are of requests to url, which is not given")
        for header, variable in self.secret_headers.items():
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,127}", header):
                raise ValueError(f"secretHeaders: must be words of letters, digits and -; got {header!r}")
            if header.lower() in RESERVED_HEADERS:
                raise ValueError(f"secretHeaders: {header} is the request's own; use another name")
            if variable.startswith("RLHF_"):
                raise ValueError(f"secretHeaders.{header}: {variable} is the operator's own and stays here")
        return self

    @property
    def metric(self) -> str:
        """Its name in the metrics."""
        return self.name or (self.function or "").partition(":")[2]


class Reward(ModelServerSpec):
    """The score of an answer: `modelWeight` x the reward model, plus the weighted functions."""

    model_weight: NonNegativeFloat = 1.0
    functions: tuple[RewardFunction, ...] = ()
    fine_grained: bool = False
    """The reward model has one output for each token (token classification), and each token gets its own reward."""
    bias: float = 0.0
    """Added to the total."""
    scale: float = 1.0
    """Factor of the total with its bias."""
    clip: tuple[float, float] | None = None
    """Bounds of the scaled total."""
    max_failed_share: float = Field(0.25, ge=0, lt=1)
    """Responses that could not be scored are left out of training. Where they are more than this share of those that
    are scored together, the job is paused and they are tried again; `startupTimeoutSeconds` without progress end it."""


class Reference(ModelServerSpec):
    """Log-probabilities of the frozen policy."""


HEALTH = "/health"
"""GET on every role, without a token."""
LIVE_SECONDS, LIVE_FAILURES, LIVE_TIMEOUT_SECONDS = 20, 6, 5
"""Liveness of a process that serves: how often it is asked, after how many failures in a row it is ended and started
again, and the deadline of an answer, for which it may ask its workers."""


@dataclass(frozen=True, kw_only=True)
class RoleRow:
    """Properties of a role that decide how a host runs it; paths are those of HTTP GET requests without a token."""

    work: Literal["train", "generate", "score", "infer"]
    """Nodes of the graph that its processes run. `train`: ranks under torchrun, one GPU each. `generate`: vLLM, whose
    GPUs hold a KV cache and new weights too. `score` and `infer`: one frozen model on one GPU, without gradients."""
    model: str | None = None
    """The field of `spec.model` that names its frozen model."""
    or_policy: bool = False
    """Without that field it holds the policy as it is at the start of the run."""
    grace_seconds: int = 15
    """From SIGTERM to SIGKILL of a pod that is deleted."""
    ready: str = HEALTH
    """Answers while the process serves."""
    live: str | None = HEALTH
    """Answers unless the process hangs; None: nobody asks."""
    drain: str | None = None
    """Asked before SIGTERM; answers when the last request is done and the trainer knows that the process goes."""


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
    TRAINER = "trainer", RoleRow(work="train", grace_seconds=300, live=None)
    GENERATOR = (
        "generator",
        RoleRow(work="generate", grace_seconds=120, ready="/ready", live="/live", drain="/drain"),
    )
    REWARD = "reward", RoleRow(work="score", model="reward")
    REFERENCE = "reference", RoleRow(work="infer", model="reference", or_policy=True)


def holder(model: str) -> Role | None:
    """The role whose frozen model is the one that this field of `spec.model` names."""
    return next((role for role in Role if role.row.model == model), None)
