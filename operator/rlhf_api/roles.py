"""The roles of a job: how many of each, with what resources of their own."""

from enum import StrEnum

from pydantic import Field, JsonValue

from .base import DType, Frozen, ImportPath, NonNegativeFloat, Positive
from .deepspeed import DeepSpeedConfig
from .pods import PodSettings


class Role(StrEnum):
    """A fault domain: its processes are started, restarted and counted together."""

    TRAINER = "trainer"
    GENERATOR = "generator"
    REWARD = "reward"
    REFERENCE = "reference"


class RoleSpec(Frozen):
    """What every role has."""

    replicas: int = Field(1, ge=1, le=1000)
    dtype: DType | None = None
    """The job's `model.dtype` unless given."""
    backoff_limit: int = Field(3, ge=0)
    """How often processes of this role are started again, all together, before the job fails."""
    startup_timeout_seconds: Positive = 600
    """How long a process may take until it answers."""
    pods: PodSettings = PodSettings()
    """On a cluster: added to `spec.pods`."""


class Trainer(RoleSpec):
    """DeepSpeed under torchrun: `replicas` nodes of `processesPerReplica` ranks."""

    processes_per_replica: Positive = 1
    progress_deadline_seconds: Positive | None = None
    """On a cluster: a trainer that makes no step for so long is started again, and that is counted."""
    micro_batch_tokens: Positive = 16384
    """Upper bound of the padded tokens that one rank forwards at once."""
    deepspeed: DeepSpeedConfig = DeepSpeedConfig()


class Generator(RoleSpec):
    """vLLM servers."""

    shared_with_trainer: bool = False
    """Generate in the trainer; no generator process is started."""
    tensor_parallel_size: Positive = 1
    concurrent_requests: Positive = 256
    """Requests in flight for each generator."""
    timeout_seconds: Positive = 600
    """How long one prompt's answers may take; after that they are asked of another generator."""
    engine_arguments: dict[str, JsonValue] = {}
    """Further options of `vllm serve`, without the dashes: `{gpu-memory-utilization: 0.8}`."""


class RewardFunction(Frozen):
    """A Python function `(prompts, responses, rows) -> list of float`."""

    function: ImportPath
    weight: float = 1.0


class Reward(RoleSpec):
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
    timeout_seconds: Positive = 120
    """How long one batch may take."""


class Reference(RoleSpec):
    """Log-probabilities of the frozen policy."""

    timeout_seconds: Positive = 120
    """How long one batch may take."""
