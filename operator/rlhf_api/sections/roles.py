"""Sections of the roles: `spec.trainer`, `spec.generator`, `spec.reference`."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, model_validator

from ..field_types import REASON, DType, Frozen, ModelField, Positive
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
    """`GpuError`, `CudaOutOfMemory`, `HostOutOfMemory`, `DiskFull`, `NcclError`, `NcclTimeout`, `EngineDead`,
    `Hung`, `NoProgress`; on a cluster also those of containers and pods, such as `OOMKilled`."""

    @model_validator(mode="after")
    def _fits_something(self) -> "FailureRule":
        if not self.exit_codes and not self.reasons:
            raise ValueError("needs exitCodes or reasons; without both it matches no failure")
        return self


class RoleSpec(Frozen):
    """Settings of every role."""

    replicas: int = Field(1, ge=1, le=MOST_PODS)
    backoff_limit: int = Field(3, ge=0)
    """Most restarts of this role's processes within `backoffWindowSeconds`. Then the job fails; while others of the
    role serve, a failed one is restarted after up to five minutes instead."""
    backoff_window_seconds: Positive = 3600
    """Seconds in which `backoffLimit` counts restarts, from the first one; a later restart begins a new window."""
    failure_rules: tuple[FailureRule, ...] = Field((), max_length=16)
    """What follows a failure, by the first rule that matches. Else it counts unless the node was drained, lost or
    wanted by others, and exit code 78 fails the job."""
    startup_timeout_seconds: Positive = 600
    """Deadline of a process to answer after its start."""
    pods: PodSettings = PodSettings()
    """Settings of this role's pods, merged over `spec.pods`."""


class ComputingRole(RoleSpec):
    """Settings of a role with a model."""

    dtype: DType | None = None
    """Compute dtype; the job's `model.dtype` unless given."""


Attention = Literal["auto", "packed", "padded"]
Kernels = Literal["auto", "liger", "torch"]
GradientCheckpointing = Literal["none", "selective", "full"]


class Trainer(ComputingRole):
    """DeepSpeed under torchrun: `replicas` nodes of `processesPerReplica` ranks."""

    processes_per_replica: Positive = 1
    progress_deadline_seconds: Positive = 900
    """A trainer without progress for this long is killed and restarted, which counts (docs/concepts/detection.md)."""
    micro_batch_tokens: Positive = 16384
    """Upper bound of the tokens, with their padding, that one rank forwards at once."""
    critic_micro_batch_tokens: Positive | None = None
    """Token budget of the critic's micro-batches; `microBatchTokens` unless given."""
    attention: Attention = "auto"
    """`packed`: sequences end to end, where a trial at the start shows the same outputs; `padded`: each
    filled up to the longest. `auto`: packed on GPUs in 16 bits where that holds, else padded. For reference and reward
    models by token too."""
    sequence_parallel_size: Positive = 1
    """Neighbouring ranks that share each packed micro-batch, of up to this many times `microBatchTokens`. Must
    divide the ranks and the policy's attention heads."""
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
    """The critic's complete DeepSpeed configuration. Unless given, it is `deepspeed`, without `bf16` and `fp16` if
    `criticDtype` differs from `dtype`."""

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


class Generator(ComputingRole):
    """vLLM servers that sample the responses."""

    autoscale: Autoscale | None = None
    """On a cluster: the operator sets `replicas` by what the last steps measured."""

    shared_with_trainer: bool = False
    """Generate in the trainer; no generator process is started."""
    tensor_parallel_size: Positive = 1
    pods_per_replica: int = Field(1, ge=1, le=MOST_PODS)
    """Pods that one generator spans, with an equal part of its GPUs each (docs/guides/clusters/cluster.md)."""
    concurrent_requests: Positive = 256
    """Requests in flight for each generator."""
    timeout_seconds: Positive = 600
    """Deadline of a prompt's next token; after it the prompt is sent again, and dropped after three tries."""
    engine_arguments: dict[str, JsonValue] = {}
    """Further options of `vllm serve`, without the dashes: `{gpu-memory-utilization: 0.8}`."""
    untried_engine_arguments: bool = False
    """Accept `engineArguments` that were never tried (docs/reference/engine-arguments.md)."""


class ModelServerSpec(ComputingRole):
    """A server of forward passes, asked by the trainer for chunks of responses."""

    timeout_seconds: Positive = 120
    """Deadline of one chunk of responses, of at most `microBatchTokens`; three tries."""
    micro_batch_tokens: Positive | None = None
    """Tokens of one chunk and of one forward pass, at most; the trainer's unless given."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """`vllm`: models that one GPU cannot hold too (docs/guides/models/model-servers.md)."""
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


class Sandbox(RoleSpec):
    """Pods in which environments run what the policy wrote, one for each episode (docs/guides/environments.md)."""

    replicas: int = Field(4, ge=1, le=MOST_PODS)
    """Pods at once, those with an episode and those that wait for one."""
    network: bool = False
    """Sandboxes may use the network."""


def option_of(key: str) -> str:
    """The vLLM option that a key sets, in whole or one of its fields, such as `kv-transfer-config.kv_role`; of
    `no-enable-eplb` the option that it switches off."""
    return key.lstrip("-").partition(".")[0].replace("_", "-").removeprefix("no-")
