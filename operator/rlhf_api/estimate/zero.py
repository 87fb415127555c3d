"""Bytes per parameter of a trained model, and how ZeRO divides them over ranks (docs/reference/memory.md); pure."""

from dataclasses import dataclass, replace

from ..field_types import DType, ModelField
from ..sections.deepspeed import DeepSpeedConfig
from ..spec import Spec

BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_BUCKET = 500_000_000
_GROUP = 1_000_000_000
"""Defaults of DeepSpeed's `reduce_bucket_size` and `sub_group_size`, in elements."""

EIGHT_BIT = 2.04
"""Bytes of two moments in 8 bits, with the two float32 scales of a block of 256 parameters; rounded up."""

Part = tuple[float, str]
"""Bytes per parameter, and their name."""


@dataclass(frozen=True)
class Zero:
    """ZeRO stage, dtypes and offloading: how a trained model is partitioned over the trainer's ranks."""

    dtype: DType
    stage: int
    ranks: int
    optimizer_away: bool = False
    """True if master weights, moments and the optimizer's work are off the GPU."""
    weights_away: bool = False
    master: int = 4
    moments: float = 8
    work: int = 0
    """Temporary buffers of the optimizer, bytes per parameter: of torch's AdamW as `torch_adam` makes it. The trainer's
    own choice, which is fused, and DeepSpeed's AdamW have none."""
    bucket: int = _BUCKET
    """Elements of a bucket in which stages 2 and 3 send gradients."""
    group: int = _GROUP

    @classmethod
    def of(cls, spec: Spec, field: ModelField) -> "Zero":
        """ZeRO settings of the model in this field of `spec.model`, with the defaults that the trainer fills in."""
        config, dtype = spec.trained_deepspeed(field), spec.trained_dtype(field)
        zero, bf16, fp16 = config.zero_optimization, config.bf16, config.fp16
        torch_adam = config.optimizer is not None and config.optimizer.params.torch_adam
        light = (bf16 and bf16.bf16_master_weights_and_grads) or (fp16 and fp16.fp16_master_weights_and_grads)
        away = [o is not None and o.device != "none" for o in (zero.offload_optimizer, zero.offload_param)]
        master = 2 if light else 4
        return cls(
            dtype=dtype,
            stage=config.stage(dtype),
            ranks=spec.trainer.ranks,
            optimizer_away=away[0],
            weights_away=away[1] and zero.stage == 3,
            master=master,
            moments=_moments(spec, config),
            work=master if torch_adam else 0,
            bucket=_BUCKET if zero.reduce_bucket_size is None else zero.reduce_bucket_size,
            group=_GROUP if zero.sub_group_size is None else zero.sub_group_size,
        )

    @property
    def of_bf16_optimizer(self) -> bool:
        """True where DeepSpeed's BF16_Optimizer trains the model, in place of its ZeRO optimizer."""
        return self.stage == 1 and self.dtype == "bfloat16" and not self.optimizer_away

    @property
    def weights(self) -> int:
        return BYTES[self.dtype]

    @property
    def gradients(self) -> int:
        """Bytes per gradient; bfloat16 gradients are accumulated in float32."""
        return 2 if self.dtype == "float16" else 4


def _moments(spec: Spec, config: DeepSpeedConfig) -> float:
    if spec.optimizer.moments == "8bit":
        return EIGHT_BIT
    return 4 if config.bf16 and config.bf16.bf16_optimizer_states else 8


@dataclass(frozen=True)
class Share:
    """Parts that every rank has in full, and parts that are partitioned over the ranks."""

    whole: tuple[Part, ...] = ()
    divided: tuple[Part, ...] = ()

    def bytes(self, ranks: int) -> float:
        return sum(b for b, _ in self.whole) + sum(b for b, _ in self.divided) / ranks

    def words(self, ranks: int) -> str:
        """`(2 weights + (4 master weights + 8 moments) / 8 ranks) B`; `-` for nothing."""
        if not self.whole + self.divided:
            return "-"
        whole = self.whole if ranks > 1 else self.whole + self.divided
        divided = self.divided if ranks > 1 else ()
        terms = [f"{size} {name}" for size, name in whole]
        parts = " + ".join(f"{size} {name}" for size, name in divided)
        if not terms:
            return f"({parts}) B / {ranks} ranks"
        if parts:
            terms.append(f"({parts}) / {ranks} ranks" if len(divided) > 1 else f"{parts} / {ranks} ranks")
        return f"({' + '.join(terms)}) B"


def resident(zero: Zero) -> Share:
    """Permanent memory of each trained model."""
    weights, gradients = (zero.weights, "weights"), (zero.gradients, "gradients")
    states = () if zero.optimizer_away else ((zero.master, "master weights"), (zero.moments, "moments"))
    if zero.stage == 0:
        return Share(whole=(weights, (zero.moments, "moments")))
    if zero.of_bf16_optimizer:
        return Share(whole=(weights, gradients), divided=states)
    if zero.stage < 3:
        return Share(whole=(weights,), divided=states)
    own = () if zero.weights_away else (weights,)
    return Share(divided=own + (() if zero.optimizer_away else (gradients, *states)))


def reducing(zero: Zero) -> Share:
    """Additional memory of a model at the end of its backward passes, whose activations are gone: their gradients, and
    at stage 1 of DeepSpeed's ZeRO optimizer (not the BF16_Optimizer) what a rank keeps of the sum over all ranks."""
    gradients = backward(zero)
    half = zero.dtype == "bfloat16"
    if zero.stage != 1 or half != zero.optimizer_away:
        return gradients
    return replace(gradients, divided=((zero.gradients, "gradient copy" if half else "summed gradients"),))


def stepping(zero: Zero) -> Share:
    """Additional memory of a model in its optimizer's step."""
    if zero.optimizer_away:
        return Share()
    gradients, copy = (zero.gradients, "gradients"), (4, "gradient copy")
    flat = ((2, "flat gradients"),) if zero.dtype == "float16" else ()  # gone before the optimizer works
    work = ((zero.work, "AdamW work"),) if zero.work else flat
    if zero.stage == 0:
        return Share(whole=(gradients, *work))
    if zero.stage == 3:
        return Share(divided=(copy, *work))
    if zero.dtype != "bfloat16":
        return Share(divided=(gradients, copy, *work))
    if zero.stage == 1:
        return Share(whole=((2, "bfloat16 gradients"),), divided=work)
    return Share(divided=(gradients, *work))


def backward(zero: Zero) -> Share:
    """Memory besides activations of the model in its backward pass: gradients, and stage 3's gathered weights."""
    if zero.stage == 3:
        return Share()
    if zero.of_bf16_optimizer:
        return Share(whole=((2, "bfloat16 gradients"),))
    gradients = ((zero.gradients, "gradients"),)
    return Share(divided=gradients) if zero.stage == 2 else Share(whole=gradients)
