"""DeepSpeed keys that a job accepts and that have no effect in it, with the reason; pure.

Such keys are named when a job is validated and when it starts, and are not refused: configurations of other projects
have them. The rows follow DeepSpeed 0.19.8.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...field_types import DType
from ...sections.deepspeed import DeepSpeedConfig


@dataclass(frozen=True)
class Setup:
    """Settings of a trained model on which the effect of other keys depends."""

    stage: int
    dtype: DType
    optimizer_device: str
    weights_device: str
    compiled_adam: bool
    """True with DeepSpeed's own Adam, which it compiles; false with torch's."""

    @classmethod
    def of(cls, config: DeepSpeedConfig, dtype: DType) -> "Setup":
        zero, chosen = config.zero_optimization, config.optimizer
        optimizer, weights = (
            away.device if away else "none" for away in (zero.offload_optimizer, zero.offload_param)
        )
        compiled = chosen is not None and not chosen.params.torch_adam
        return cls(config.stage(dtype), dtype, optimizer, weights, compiled)

    @property
    def offloads(self) -> bool:
        """True if master weights and moments are off the GPU."""
        return self.optimizer_device != "none"

    @property
    def sums_in_float32(self) -> bool:
        """True with DeepSpeed's BF16_Optimizer, whose gradients and master weights are float32 always."""
        return self.dtype == "bfloat16" and self.stage == 1 and not self.offloads


@dataclass(frozen=True)
class _Key:
    """A key, where it acts, and why it does not elsewhere. Its value `default` is DeepSpeed's own, and is not named."""

    name: str
    acts: Callable[[Setup], bool]
    why: str
    default: Any = None


def idle_keys(config: DeepSpeedConfig, dtype: DType) -> Iterator[tuple[str, str]]:
    """Yields each given key without effect, as a path below the configuration, and the reason."""
    setup = Setup.of(config, dtype)
    for key in (*_KEYS, *(_SCALING if config.fp16 is not None and config.fp16.loss_scale else ())):
        value: Any = config
        for part in key.name.split("."):
            given = value is not None and part in value.model_fields_set
            value = getattr(value, part) if given else None
        if value is not None and value != key.default and not key.acts(setup):
            yield key.name, key.why


def _never(_setup: Setup) -> bool:
    return False


def _divides(setup: Setup) -> bool:
    """DeepSpeed's ZeRO optimizers, which send gradients in buckets as the backward pass makes them."""
    return setup.stage > 0 and not setup.sums_in_float32


def _early(setup: Setup) -> bool:
    """The ZeRO optimizer of stages 1 and 2."""
    return _divides(setup) and setup.stage < 3


_ROUND_ROBIN = (
    "it is left off: it would change the speed of offload_optimizer alone, and DeepSpeed then takes parts of other "
    "tensors for a parameter's master weights and moments, which a checkpoint would save"
)
_BUCKETS = "the gradient is summed once it is whole: it acts at stages 2 and 3"
_DISK = "it is of device nvme alone"
_KEYS = (
    _Key("zero_optimization.round_robin_gradients", _never, _ROUND_ROBIN, False),
    _Key("zero_optimization.allgather_partitions", _never, "DeepSpeed does not read it", True),
    _Key(
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        *(_never, "what is saved is whole at any stage", False),
    ),
    _Key("zero_optimization.reduce_bucket_size", lambda setup: setup.stage > 0, "it acts from stage 1 on"),
    _Key(
        "zero_optimization.allgather_bucket_size",
        lambda setup: 0 < setup.stage < 3,
        "it acts at stages 1 and 2",
    ),
    _Key("zero_optimization.overlap_comm", _divides, _BUCKETS, False),
    _Key("zero_optimization.reduce_scatter", _divides, _BUCKETS, True),
    _Key(
        "zero_optimization.contiguous_gradients",
        lambda setup: _divides(setup) and not (setup.stage < 3 and setup.offloads),
        "gradients are contiguous anyway or not held in buckets",
        True,
    ),
    _Key(
        "zero_optimization.use_multi_rank_bucket_allreduce",
        *(_early, "it acts where stages 1 and 2 send gradients in buckets", True),
    ),
    _Key(
        "zero_optimization.ignore_unused_parameters",
        lambda setup: _early(setup) and setup.offloads,
        "only offload_optimizer at stages 1 and 2 looks for unused parameters",
        True,
    ),
    _Key("zero_allow_untested_optimizer", _never, "Adam and AdamW need no such leave", False),
    _Key("zero_force_ds_cpu_optimizer", _never, "the optimizer is the one that the job names", False),
    _Key("bf16.immediate_grad_update", lambda setup: setup.sums_in_float32, "it acts at stage 1", False),
    _Key(
        "bf16.check_grad_overflow", _early, "it acts at stage 2, and at stage 1 with offload_optimizer", True
    ),
    _Key("fp16.auto_cast", _never, "what the models read are integers", False),
    *(
        _Key(
            f"zero_optimization.offload_optimizer.{name}",
            lambda setup: setup.optimizer_device == "nvme",
            _DISK,
        )
        for name in ("buffer_count", "pipeline_read", "pipeline_write", "fast_init")
    ),
    *(
        _Key(f"zero_optimization.offload_param.{name}", lambda setup: setup.weights_device == "nvme", _DISK)
        for name in ("buffer_count", "buffer_size", "max_in_cpu")
    ),
)
_SCALING = tuple(
    _Key(f"fp16.{name}", _never, "fp16.loss_scale is fixed")
    for name in (
        "initial_scale_power",
        "loss_scale_window",
        "hysteresis",
        "consecutive_hysteresis",
        "min_loss_scale",
    )
)
