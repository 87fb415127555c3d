"""Memory of one GPU of a role, by formulae that docs/memory.md explains; pure.

The KV cache, and what CUDA and its libraries keep, come on top.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .base import DType, ModelField
from .spec import Spec

BYTES: dict[DType, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_BUCKET = 500_000_000
_GROUP = 1_000_000_000
_LIVE = 1_000_000_000
"""Defaults of DeepSpeed's `reduce_bucket_size`, `sub_group_size` and `stage3_max_live_parameters`, in elements."""

Part = tuple[int, str]
"""Bytes per parameter, and their name."""


@dataclass(frozen=True)
class Need:
    """Bytes, with the arithmetic."""

    total: float
    words: str


@dataclass(frozen=True)
class Zero:
    """ZeRO stage, dtypes and offloading: how a trained model is partitioned over the trainer's ranks."""

    dtype: DType
    stage: int
    ranks: int
    optimizer_away: bool = False
    """Master weights, moments and the optimizer's work are off the GPU."""
    weights_away: bool = False
    master: int = 4
    moments: int = 8
    work: int = 4
    """Temporary buffers of torch's AdamW, bytes per parameter; those of DeepSpeed's own are negligible."""
    bucket: int = _BUCKET
    group: int = _GROUP

    @classmethod
    def of(cls, spec: Spec, field: ModelField) -> "Zero":
        """ZeRO settings of the model in this field of `spec.model`, with the defaults that the trainer fills in."""
        config, dtype = spec.trained_deepspeed(field), spec.trained_dtype(field)
        zero, bf16, fp16 = config.zero_optimization, config.bf16, config.fp16
        light = (bf16 and bf16.bf16_master_weights_and_grads) or (fp16 and fp16.fp16_master_weights_and_grads)
        away = [o is not None and o.device != "none" for o in (zero.offload_optimizer, zero.offload_param)]
        master = 2 if light else 4
        return cls(
            dtype=dtype,
            # Mixed precision is stage 1 at least: the trainer makes it so.
            stage=zero.stage if dtype == "float32" else max(1, zero.stage),
            ranks=spec.trainer.ranks,
            optimizer_away=away[0],
            weights_away=away[1] and zero.stage == 3,
            master=master,
            moments=4 if bf16 and bf16.bf16_optimizer_states else 8,
            work=0 if config.optimizer else master,
            bucket=_BUCKET if zero.reduce_bucket_size is None else zero.reduce_bucket_size,
            group=_GROUP if zero.sub_group_size is None else zero.sub_group_size,
        )

    @property
    def weights(self) -> int:
        return BYTES[self.dtype]

    @property
    def gradients(self) -> int:
        """Bytes per gradient; bfloat16 gradients are accumulated in float32."""
        return 2 if self.dtype == "float16" else 4


@dataclass(frozen=True)
class Trained:
    """A trained model on one rank."""

    parameters: float
    zero: Zero
    activations: float | None = None
    """Bytes at the peak of its backward pass, where they are known."""
    frozen: bool = False
    """It has an adapter, whose gradients and states alone there are; those are not counted."""
    gathers: bool = False
    """Its whole weights are needed to generate with."""


@dataclass(frozen=True)
class Share:
    """Parts that every rank has in full, and parts that are partitioned over the ranks."""

    whole: tuple[Part, ...] = ()
    divided: tuple[Part, ...] = ()

    def bytes(self, ranks: int) -> float:
        return sum(b for b, _ in self.whole) + sum(b for b, _ in self.divided) / ranks

    def words(self, ranks: int) -> str:
        """`(2 weights + (4 master weights + 8 moments) / 8 ranks) B`."""
        whole = self.whole if ranks > 1 else self.whole + self.divided
        divided = self.divided if ranks > 1 else ()
        terms = [f"{size} {name}" for size, name in whole]
        parts = " + ".join(f"{size} {name}" for size, name in divided)
        if not terms:
            return f"({parts}) B / {ranks} ranks"
        if parts:
            terms.append(f"({parts}) / {ranks} ranks" if len(divided) > 1 else f"{parts} / {ranks} ranks")
        return f"({' + '.join(terms)}) B"


def kept(zero: Zero) -> Share:
    """Permanent memory of each trained model."""
    weights, gradients = (zero.weights, "weights"), (zero.gradients, "gradients")
    states = () if zero.optimizer_away else ((zero.master, "master weights"), (zero.moments, "moments"))
    if zero.stage == 0:
        return Share(whole=(weights, (zero.moments, "moments")))
    if zero.stage == 1 and zero.dtype == "bfloat16" and not zero.optimizer_away:
        return Share(whole=(weights, gradients), divided=states)
    if zero.stage < 3:
        return Share(whole=(weights,), divided=states)
    own = () if zero.weights_away else (weights,)
    return Share(divided=own + (() if zero.optimizer_away else (gradients, *states)))


def updating(zero: Zero) -> Share:
    """Additional peak memory of the model that is being updated."""
    gradients, copy = (zero.gradients, "gradients"), (4, "gradient copy")
    work = ((zero.work, "AdamW work"),) if zero.work else ()
    if zero.stage == 0:
        return Share(whole=(gradients, *work))
    if zero.stage == 3:
        return Share() if zero.optimizer_away else Share(divided=(copy, *work))
    if zero.dtype == "bfloat16":
        if zero.optimizer_away:
            return (
                Share(whole=(gradients,), divided=(copy,)) if zero.stage == 1 else Share(divided=(gradients,))
            )
        if zero.stage == 1:
            return Share(whole=((2, "bfloat16 gradients"),), divided=work)
        return Share(divided=(gradients, *work))
    backward = Share(whole=(gradients,)) if zero.stage == 1 else Share()
    step = Share() if zero.optimizer_away else Share(divided=(gradients, copy, *work))
    return max(backward, step, key=lambda share: share.bytes(zero.ranks))


def backward(zero: Zero) -> Share:
    """Memory besides activations of the model in its backward pass: gradients, and stage 3's gathered weights."""
    if zero.stage == 3:
        return Share()
    if zero.dtype == "bfloat16" and zero.stage == 1 and not zero.optimizer_away:
        return Share(whole=((2, "bfloat16 gradients"),))
    gradients = ((zero.gradients, "gradients"),)
    return Share(divided=gradients) if zero.stage == 2 else Share(whole=gradients)


def trainer(models: Sequence[Trained]) -> Need:
    """A rank that trains all of `models`, one after the other."""
    found = [_training(models)]
    found += [_generating(models, one) for one in models if one.gathers and one.zero.stage == 3]
    return max(found, key=lambda need: need.total)


def weights(parameters: float, dtype: DType, gpus: int = 1) -> Need:
    """Memory of an inference-only model, over the GPUs of one server."""
    over = f" / {gpus} GPUs" if gpus > 1 else ""
    return Need(parameters * BYTES[dtype] / gpus, f"{count(parameters)} parameters x {BYTES[dtype]} B{over}")


def count(parameters: float) -> str:
    """`7.62e9`."""
    for power in (12, 9, 6):
        if 10**power <= parameters < 1e15:
            return f"{parameters / 10**power:.4g}e{power}"
    return f"{parameters:.6g}"


def gigabytes(size: float) -> str:
    """Three digits of 10^9 bytes: `91.2`."""
    return f"{size / 1e9:.0f}" if 1e11 <= size < 1e15 else f"{size / 1e9:.3g}"


def _training(models: Sequence[Trained]) -> Need:
    parts = [*_always(models), max(_phases(models), key=lambda need: need.total, default=Need(0.0, ""))]
    buckets = sum(m.zero.bucket * m.zero.weights for m in models if m.zero.stage == 3 and not m.frozen)
    parts += [Need(buckets, f"{gigabytes(buckets)} GB of reduce buckets"), *_frozen(models)]
    there = [part for part in parts if part.total]
    return Need(
        sum(part.total for part in there), " + ".join(p.words for p in there) or "all of it on the CPU"
    )


def _always(models: Sequence[Trained]) -> list[Need]:
    """Memory of weights and optimizer states; models with equal ZeRO settings share one entry."""
    return [
        Need(
            sum(sizes) * kept(zero).bytes(zero.ranks),
            f"{_parameters(sizes)} x {kept(zero).words(zero.ranks)}",
        )
        for zero, sizes in _alike(models, frozen=False).items()
    ]


def _phases(models: Sequence[Trained]) -> Iterator[Need]:
    """Memory on top of what is kept: in each model's optimizer step, and in its backward pass."""
    for model in models:
        size, zero = model.parameters, model.zero
        if not model.frozen:
            # At stage 3 a rank updates its part group by group.
            at_once = min(size, zero.group * zero.ranks) if zero.stage == 3 else size
            busy = updating(zero)
            yield Need(
                at_once * busy.bytes(zero.ranks), f"{count(at_once)} x {busy.words(zero.ranks)} in an update"
            )
        if model.activations is not None:
            live, words = _beside_activations(model)
            words += f"{gigabytes(model.activations)} GB of activations in the backward pass"
            yield Need(live + model.activations, words)


def _beside_activations(model: Trained) -> tuple[float, str]:
    size, zero = model.parameters, model.zero
    if zero.stage == 3:
        live = min(size, _LIVE) * zero.weights
        return live, f"{gigabytes(live)} GB of gathered weights and "
    beside = backward(zero)
    live = 0.0 if model.frozen else size * beside.bytes(zero.ranks)
    return live, f"{count(size)} x {beside.words(zero.ranks)} and " if live else ""


def _generating(models: Sequence[Trained], policy: Trained) -> Need:
    size, width = policy.parameters, policy.zero.weights
    whole = Need(size * width, f"{count(size)} x {width} B gathered to generate with")
    parts = [part for part in (*_always(models), *_frozen(models), whole) if part.total]
    return Need(sum(part.total for part in parts), " + ".join(part.words for part in parts))


def _frozen(models: Sequence[Trained]) -> Iterator[Need]:
    """The weights of models with an adapter."""
    for zero, sizes in _alike(models, frozen=True).items():
        ranks = zero.ranks if zero.stage == 3 else 1
        over = f" / {ranks} ranks" if ranks > 1 else ""
        if not zero.weights_away:
            words = f"{_parameters(sizes)}, frozen, x {zero.weights} B{over}"
            yield Need(sum(sizes) * zero.weights / ranks, words)


def _alike(models: Sequence[Trained], *, frozen: bool) -> dict[Zero, list[float]]:
    """Parameters of the models that are divided in each way."""
    found: dict[Zero, list[float]] = {}
    for model in models:
        if model.frozen is frozen:
            found.setdefault(model.zero, []).append(model.parameters)
    return found


def _parameters(models: Sequence[float]) -> str:
    if len(set(models)) == 1:
        return f"{count(models[0])} parameters" + (f" x {len(models)} models" if len(models) > 1 else "")
    return f"({' + '.join(map(count, models))}) parameters"
