"""The raw DeepSpeed configuration of a manifest, spelled as DeepSpeed spells it and checked key by key.

The keys are those of DeepSpeed 0.19.8; a test holds this file against the installed version.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

from ..field_types import Decay, DType, Epsilon, Fraction, ModelField, NonNegativeFloat


def _as_integer(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


EXACT = 2**53 - 1
"""Largest integer that survives a conversion to float, which some API servers apply."""
Count = Annotated[
    int,
    BeforeValidator(_as_integer),
    Field(ge=0, le=EXACT),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": EXACT}),
]
"""Large whole numbers, which DeepSpeed's own documentation writes as `5e8`; CEL takes that for no integer."""
Size = Annotated[
    int,
    BeforeValidator(_as_integer),
    Field(ge=1, le=EXACT),
    WithJsonSchema({"type": "number", "minimum": 1, "maximum": EXACT}),
]
Number = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BF16(_Section):
    enabled: bool = False
    immediate_grad_update: bool | None = None
    check_grad_overflow: bool | None = None
    bf16_master_weights_and_grads: bool | None = None
    bf16_optimizer_states: bool | None = None


class FP16(_Section):
    enabled: bool = False
    auto_cast: bool | None = None
    loss_scale: NonNegativeFloat | None = None
    initial_scale_power: int | None = Field(None, ge=0, le=127)
    loss_scale_window: int | None = Field(None, ge=1)
    hysteresis: int | None = Field(None, ge=1)
    consecutive_hysteresis: bool | None = None
    min_loss_scale: Size | None = None
    fp16_master_weights_and_grads: bool | None = None


class OffloadParam(_Section):
    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    buffer_count: Number | None = None
    buffer_size: Count | None = None
    max_in_cpu: Count | None = None
    pin_memory: bool | None = None


class OffloadOptimizer(_Section):
    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: str | None = None
    buffer_count: Number | None = None
    pin_memory: bool | None = None
    pipeline_read: bool | None = None
    pipeline_write: bool | None = None
    fast_init: bool | None = None
    ratio: Fraction | None = None
    super_offload: bool | None = None
    cpuadam_cores_perc: Fraction | None = None


class ZeroOptimization(_Section):
    stage: Literal[0, 1, 2, 3] = 0
    contiguous_gradients: bool | None = None
    reduce_scatter: bool | None = None
    reduce_bucket_size: Size | None = None
    use_multi_rank_bucket_allreduce: bool | None = None
    allgather_partitions: bool | None = None
    allgather_bucket_size: Count | None = None
    overlap_comm: bool | None = None
    offload_param: OffloadParam | None = None
    offload_optimizer: OffloadOptimizer | None = None
    sub_group_size: Count | None = None
    stage3_prefetch_bucket_size: Count | None = None
    stage3_param_persistence_threshold: Count | None = None
    stage3_model_persistence_threshold: Count | None = None
    stage3_max_live_parameters: Count | None = None
    stage3_max_reuse_distance: Count | None = None
    stage3_gather_16bit_weights_on_model_save: bool | None = None
    stage3_module_granularity_threshold: int | None = None
    stage3_use_all_reduce_for_fetch_params: bool | None = None
    stage3_allgather_sequential: bool | None = None
    ignore_unused_parameters: bool | None = None
    round_robin_gradients: bool | None = None
    zero_hpz_partition_size: Number | None = None
    zero_quantized_weights: bool | None = None
    zero_quantized_nontrainable_weights: bool | None = None
    zero_quantized_gradients: bool | None = None
    memory_efficient_linear: bool | None = None
    log_trace_cache_warnings: bool | None = None


class AdamParameters(_Section):
    lr: float | None = None
    """Refused: the job sets it."""
    betas: tuple[Decay, Decay] | None = None
    eps: Epsilon | None = None
    weight_decay: NonNegativeFloat | None = None
    torch_adam: bool | None = None
    adam_w_mode: bool | None = None
    bias_correction: bool | None = None
    fp32_optimizer_states: bool | None = None


class OptimizerSection(_Section):
    type: str
    params: AdamParameters = AdamParameters()


class DeepSpeedConfig(_Section):
    """The part of DeepSpeed's configuration that a user may set; batching, clipping and schedules belong to the job."""

    zero_optimization: ZeroOptimization = ZeroOptimization()
    bf16: BF16 | None = None
    fp16: FP16 | None = None
    optimizer: OptimizerSection | None = None
    zero_allow_untested_optimizer: bool | None = None
    zero_force_ds_cpu_optimizer: bool | None = None
    communication_data_type: Literal["fp16", "bf16", "fp32"] | None = None
    activation_checkpointing: dict[str, JsonValue] | None = None
    wall_clock_breakdown: bool | None = None
    steps_per_print: int | None = Field(None, ge=1)
    comms_logger: dict[str, JsonValue] | None = None

    def stage(self, dtype: DType) -> int:
        """ZeRO's stage of a model of this dtype: 1 at least in mixed precision, to which the trainer raises it."""
        given = self.zero_optimization.stage
        return given if dtype == "float32" else max(1, given)

    def raw(self) -> dict[str, JsonValue]:
        """The configuration as DeepSpeed reads it: only fields that were set."""
        return self.model_dump(exclude_none=True, exclude_unset=True)


@dataclass(frozen=True)
class Section:
    """A DeepSpeed section of `spec.trainer`: its trained model's field of `spec.model`, and the job's own fields that
    go with it, in `spec.trainer`, in the algorithm's section and in `spec.optimizer`."""

    name: str
    model: ModelField
    dtype: str
    tokens: str
    minibatch: str
    rate: str

    def where(self, key: str) -> str:
        return f"spec.trainer.{self.name}.{key}"


SECTIONS = (
    Section("deepspeed", "policy", "dtype", "microBatchTokens", "minibatchSize", "learningRate"),
    Section(
        *("criticDeepspeed", "critic", "criticDtype", "criticMicroBatchTokens"),
        *("valueMinibatchSize", "criticLearningRate"),
    ),
)
