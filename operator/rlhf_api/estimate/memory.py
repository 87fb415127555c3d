"""Memory of one GPU of a role, by formulae that docs/reference/memory.md explains; pure.

The KV cache, and what CUDA and its libraries keep, come on top.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..field_types import DType
from .zero import BYTES, Share, Zero, backward, reducing, resident, stepping

_LIVE = 1_000_000_000
"""Default of DeepSpeed's `stage3_max_live_parameters`."""
_AVERAGE = 4
"""Bytes per parameter of a moving average."""


@dataclass(frozen=True)
class Need:
    """Memory in bytes, `total`, with its arithmetic as `words`."""

    total: float
    words: str


@dataclass(frozen=True)
class Trained:
    """A trained model on one rank."""

    parameters: float
    zero: Zero
    activations: float | None = None
    """Bytes at the peak of its backward pass, where they are known."""
    part: float | None = None
    """Parameters of the part that is trained, its adapter or what is not frozen, if not all are: gradients and
    optimizer states exist for these alone. 0: not known."""
    gathers: bool = False
    """True if ZeRO-3 gathers the whole weights, to generate with them."""
    adapted: bool = False
    """True if the part is an adapter, beside weights that are all frozen."""
    averaged: bool = False
    """True if a moving average of the weights is kept beside them, in float32."""

    @property
    def learned(self) -> float:
        """Parameters that have gradients and optimizer states."""
        return self.parameters if self.part is None else self.part

    @property
    def frozen(self) -> float:
        """Parameters that stay as they are."""
        return self.parameters if self.adapted else self.parameters - self.learned


def trainer(models: Sequence[Trained]) -> Need:
    """Peak memory of a rank that trains all of `models`, one after the other."""
    needs = [_training(models)]
    needs += [_generating(models, one) for one in models if one.gathers and one.zero.stage == 3]
    return max(needs, key=lambda need: need.total)


def between_updates(models: Sequence[Trained]) -> Need:
    """Memory of a rank between updates: trained weights, optimizer states, and what is beside them."""
    there = [part for part in (*_always(models), *_buckets(models), *_beside(models)) if part.total]
    return Need(sum(part.total for part in there), _words(there))


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
    there = [part for part in (*parts, *_buckets(models), *_beside(models)) if part.total]
    return Need(sum(part.total for part in there), _words(there))


def _words(parts: Sequence[Need]) -> str:
    return " + ".join(part.words for part in parts) or "all of it on the CPU"


def _buckets(models: Sequence[Trained]) -> Iterator[Need]:
    """The reduce buckets that stage 3 keeps."""
    buckets = sum(model.zero.bucket * model.zero.weights for model in models if model.zero.stage == 3)
    yield Need(buckets, f"{gigabytes(buckets)} GB of reduce buckets")


def _always(models: Sequence[Trained]) -> list[Need]:
    """Memory of trained weights and optimizer states; models with equal ZeRO settings share one entry."""
    needs = []
    for of, alike in (
        ("parameters", [model for model in models if model.part is None]),
        ("trained parameters", [model for model in models if model.part]),
    ):
        for zero, sizes in _sizes((model.zero, model.learned) for model in alike).items():
            share = resident(zero)
            words = f"{_added(sizes, of)} x {share.words(zero.ranks)}"
            needs.append(Need(sum(sizes) * share.bytes(zero.ranks), words))
    return needs


def _phases(models: Sequence[Trained]) -> Iterator[Need]:
    """Memory on top of what is kept: in each model's backward passes, at their end, and in its optimizer step."""
    for model in models:
        size, zero = model.learned, model.zero
        if size:
            # At stage 3 a rank updates its part group by group.
            at_once = min(size, zero.group * zero.ranks) if zero.stage == 3 else size
            yield _with_bucket(_updated(at_once, reducing(zero), zero.ranks), zero)
            yield _updated(at_once, stepping(zero), zero.ranks)
        if model.activations is not None:
            live, words = _beside_activations(model)
            words += f"{gigabytes(model.activations)} GB of activations in the backward pass"
            yield _with_bucket(Need(live + model.activations, words), zero)


def _updated(parameters: float, share: Share, ranks: int) -> Need:
    """Memory of gradients and the optimizer's temporary buffers, for so many parameters at once."""
    return Need(parameters * share.bytes(ranks), f"{count(parameters)} x {share.words(ranks)} in an update")


def _with_bucket(need: Need, zero: Zero) -> Need:
    """The need of backward passes with the bucket in which DeepSpeed's ZeRO optimizer of stages 1 and 2 sends gradients
    meanwhile; the BF16_Optimizer of stage 1 has none, and stage 3 keeps its own."""
    bucket = zero.bucket * zero.weights
    if zero.stage not in (1, 2) or zero.of_bf16_optimizer or not bucket:
        return need
    return Need(need.total + bucket, f"{need.words} and {gigabytes(bucket)} GB of its reduce bucket")


def _beside_activations(model: Trained) -> tuple[float, str]:
    size, zero = model.learned, model.zero
    if zero.stage == 3:
        live = min(model.parameters, _LIVE) * zero.weights
        return live, f"{gigabytes(live)} GB of gathered weights and "
    beside = backward(zero)
    live = size * beside.bytes(zero.ranks)
    return live, f"{count(size)} x {beside.words(zero.ranks)} and " if live else ""


def _generating(models: Sequence[Trained], policy: Trained) -> Need:
    size, width = policy.parameters, policy.zero.weights
    whole = Need(size * width, f"{count(size)} x {width} B gathered to generate with")
    parts = [part for part in (*_always(models), *_beside(models), whole) if part.total]
    return Need(sum(part.total for part in parts), " + ".join(part.words for part in parts))


def _beside(models: Sequence[Trained]) -> Iterator[Need]:
    """Frozen weights, and moving averages, which lie where the weights do."""
    frozen = ((model.zero, model.frozen) for model in models if model.part is not None)
    for zero, sizes in _sizes(frozen).items():
        if not zero.weights_away:
            ranks, over = _share(zero)
            words = f"{_added(sizes)}, frozen, x {zero.weights} B{over}"
            yield Need(sum(sizes) * zero.weights / ranks, words)
    for model in models:
        if model.averaged and not model.zero.weights_away:
            ranks, over = _share(model.zero)
            words = f"{count(model.parameters)} x {_AVERAGE} B of its moving average{over}"
            yield Need(model.parameters * _AVERAGE / ranks, words)


def _share(zero: Zero) -> tuple[int, str]:
    """Ranks over which weights are divided, and the words of it."""
    ranks = zero.ranks if zero.stage == 3 else 1
    return ranks, f" / {ranks} ranks" if ranks > 1 else ""


def _sizes(models: Iterable[tuple[Zero, float]]) -> dict[Zero, list[float]]:
    """Parameter counts, grouped by ZeRO settings."""
    grouped: dict[Zero, list[float]] = {}
    for zero, parameters in models:
        grouped.setdefault(zero, []).append(parameters)
    return grouped


def _added(sizes: Sequence[float], of: str = "parameters") -> str:
    if len(set(sizes)) == 1:
        return f"{count(sizes[0])} {of}" + (f" x {len(sizes)} models" if len(sizes) > 1 else "")
    return f"({' + '.join(map(count, sizes))}) {of}"
