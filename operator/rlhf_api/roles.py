"""Roles of a job: settings in the manifest (`RoleSpec`), and properties known to hosts (`Role`)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from .base import (
    REASON,
    DType,
    Frozen,
    Head,
    ModelField,
    Positive,
)
from .deepspeed import DeepSpeedConfig
from .pods import PodSettings

ExitCode = Annotated[int, Field(ge=0, le=255)]
Reason = Annotated[str, Field(pattern=REASON, max_length=128)]


MOST_PODS = 1000
"""Most pods of a role: a host looks at each of them, and one operator serves all jobs of a cluster."""


class FailureRule(Frozen):
    """Action after an end with one of these exit codes or reasons."""

    action: Literal["FailJob", "Ignore", "Count"]
    """`FailJob`: the job fails at once; `Ignore`: the process is restarted, uncounted; `Count`: restarted, and
    counted."""
    exit_codes: tuple[ExitCode, ...] = Field((), max_length=64)
    """Exit codes of the process; from 129 on, 128 plus a signal's number."""
    reasons: tuple[Reason, ...] = Field((), max_length=16)
    """Types of failures: `GpuError`, `CudaOutOfMemory`, `HostOutOfMemory`, `DiskFull`, `NcclError`, `NcclTimeout`,
    `EngineDead`, `Hung`, `NoProgress`; on a cluster also those of containers and pods, such as `OOMKilled`."""

    @model_validator(mode="after")
    def _fits_something(self) -> "FailureRule":
        if not self.exit_codes and not self.reasons:
            raise ValueError("needs exitCodes or reasons; without both it matches no failure")
        return self


class RoleSpec(Frozen):
    """Settings of every role."""

    replicas: int = Field(1, ge=1, le=MOST_PODS)
    dtype: DType | None = None
    """Compute dtype of the role; the job's `model.dtype` unless given."""
    backoff_limit: int = Field(3, ge=0)
    """Maximum number of restarts of this role's processes, together, within `backoffWindowSeconds`. After that the job
    fails; while others of the role serve, a failed one is restarted after up to five minutes instead."""
    backoff_window_seconds: Positive = 3600
    """Length of the window in which `backoffLimit` counts restarts, seconds from the first one; a later restart begins
    a new window."""
    failure_rules: tuple[FailureRule, ...] = Field((), max_length=16)
    """Rules of what follows a failure; the first that matches applies. Without one, a failure counts unless the
    node was drained, lost or wanted by others, and exit code 78 fails the job."""
    startup_timeout_seconds: Positive = 600
    """Deadline of a process to answer after its start."""
    pods: PodSettings = PodSettings()
    """Settings of this role's pods, merged over `spec.pods`."""


Attention = Literal["auto", "packed", "padded"]
Kernels = Literal["auto", "liger", "torch"]
GradientCheckpointing = Literal["none", "selective", "full"]


class Trainer(RoleSpec):
    """DeepSpeed under torchrun: `replicas` nodes of `processesPerReplica` ranks."""

    processes_per_replica: Positive = 1
    progress_deadline_seconds: Positive = 900
    """A trainer without a sign of progress for this long is killed and restarted, which counts (docs/detection.md)."""
    micro_batch_tokens: Positive = 16384
    """Upper bound of the tokens, with their padding, that one rank forwards at once."""
    critic_micro_batch_tokens: Positive | None = None
    """Token budget of the critic's micro-batches; `microBatchTokens` unless given."""
    attention: Attention = "auto"
    """`packed`: sequences end to end, where a trial at the start shows that the model computes the same; `padded`: each
    filled up to the longest. `auto`: packed on GPUs where that holds, else padded. For reference and reward models by
    token too."""
    sequence_parallel_size: Positive = 1
    """Number of neighbouring ranks that share each packed micro-batch, of up to this many times `microBatchTokens`, by
    its tokens. Must divide the ranks and the policy's attention heads."""
    kernels: Kernels = "auto"
    """`liger`: fused norms, rotary embedding and SwiGLU; `torch`: the model's own. `auto`: Liger's on GPUs, where it is
    installed and supports the model."""
    gradient_checkpointing: GradientCheckpointing = "none"
    """Layers whose activations the backward pass computes again: none, `selective` every second one, or `full`, all."""
    deterministic: bool = False
    """On GPUs only kernels whose sums have one order, so that runs and resumed runs are equal bit for bit; slower."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()
    critic_dtype: DType | None = None
    """Compute dtype of the critic; `dtype` unless given."""
    critic_deepspeed: DeepSpeedConfig | None = None
    """DeepSpeed configuration of the critic, complete: nothing is added from `deepspeed`. Unless given, it is
    `deepspeed`, without its `bf16` and `fp16` if `criticDtype` differs from `dtype`."""

    def micro_batch(self, model: ModelField) -> int:
        """Tokens that a rank forwards at once through the trained model of this field of `spec.model`."""
        own = self.critic_micro_batch_tokens if model == "critic" else None
        return own or self.micro_batch_tokens

    @property
    def ranks(self) -> int:
        """Ranks over all nodes."""
        return self.replicas * self.processes_per_replica


class Autoscale(Frozen):
    """Bounds of the number of generators, and how long the trainer may wait for them."""

    min_replicas: int = Field(1, ge=1, le=MOST_PODS)
    max_replicas: int = Field(ge=1, le=MOST_PODS)
    trainer_idle: float = Field(0.2, gt=0, lt=1)
    """Share of a step that the trainer may wait for responses; the operator keeps the fewest generators that stay
    within it."""


class Generator(RoleSpec):
    """vLLM servers that sample the responses."""

    autoscale: Autoscale | None = None
    """On a cluster: the operator sets `replicas` by what the last steps measured."""

    shared_with_trainer: bool = False
    """Generate in the trainer; no generator process is started."""
    tensor_parallel_size: Positive = 1
    pods_per_replica: int = Field(1, ge=1, le=MOST_PODS)
    """Pods that one generator spans, with an equal part of its GPUs each (docs/cluster.md)."""
    concurrent_requests: Positive = 256
    """Requests in flight for each generator."""
    timeout_seconds: Positive = 600
    """Deadline of a prompt's next token; after it the prompt is sent again, and dropped after three tries."""
    engine_arguments: dict[str, JsonValue] = {}
    """Further options of `vllm serve`, without the dashes: `{gpu-memory-utilization: 0.8}`."""
    untried_engine_arguments: bool = False
    """Accept `engineArguments` that were never tried (docs/engine-arguments.md)."""


class ModelServerSpec(RoleSpec):
    """A server of forward passes, asked by the trainer for chunks of responses."""

    timeout_seconds: Positive = 120
    """Deadline of one chunk of responses, of at most `microBatchTokens`; three tries."""
    micro_batch_tokens: Positive | None = None
    """Tokens of one chunk and of one forward pass, at most; the trainer's unless given."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """`vllm`: models that one GPU cannot hold too (docs/model-servers.md)."""
    tensor_parallel_size: Positive = 1
    """Number of GPUs over which engine `vllm` divides the model's layers."""
    engine_arguments: dict[str, JsonValue] = {}
    """Further options of vLLM, as in `generator`."""
    untried_engine_arguments: bool = False
    """Accept `engineArguments` that were never tried, as in `generator`."""

    def micro_batch(self, trainer: Trainer) -> int:
        """Tokens per chunk and per forward pass."""
        return self.micro_batch_tokens or trainer.micro_batch_tokens


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
    TRAINER = "trainer", RoleRow(work="train", grace_seconds=300, live=None)
    GENERATOR = (
        "generator",
        RoleRow(work="generate", grace_seconds=120, ready="/ready", live="/live", drain="/drain"),
    )
    REWARD = "reward", RoleRow(work="score", model="reward", head="score")
    REFERENCE = "reference", RoleRow(work="infer", model="reference", or_policy=True)


def holder(model: ModelField) -> Role | None:
    """The role that holds the frozen model of this field of `spec.model`."""
    return next((role for role in Role if role.row.model == model), None)
