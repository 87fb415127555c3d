"""Copy plan of a weight load: recorded once, then replayed for later updates without the model's loading code."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Named = Sequence[tuple[str, Tensor]]
BATCH = 256 << 20  # maximum bytes of weights per batched copy
CONSTANT = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)


@dataclass(frozen=True)
class Copy:
    """Copies the part of a weight that begins `offset` elements into it to `into`, in the model's memory."""

    into: Tensor
    offset: int
    stride: tuple[int, ...]

    def part(self, weight: Tensor) -> Tensor:
        return weight.as_strided(self.into.shape, self.stride, weight.storage_offset() + self.offset)


@dataclass(frozen=True)
class Copies:
    """Recorded copies of a load, by the weight's name; valid for other weights that `fit`. If every weight of the load
    is `whole`, copied completely, replaying the copies equals the load."""

    whole: bool
    _of: tuple[tuple[object, ...], ...]
    _where: tuple[int, ...]
    _copies: Mapping[str, Sequence[Copy]]

    @classmethod
    def watch(
        cls, model: nn.Module, weights: Named, load: Callable[[Named], set[str] | None]
    ) -> "tuple[set[str] | None, Copies | None]":
        """Result of `load(weights)`, and the copies that it made; None if it did anything but copy parts of weights
        into parameters and buffers and fill the rest with constants.
        """
        watch = _Watch(model, weights)
        with watch:
            names = load(weights)
        if names is None or watch.did_more():
            return names, None
        whole = watch.copied == {name: weight.numel() for name, weight in weights}
        return names, cls(whole, _kinds(weights), _places(model), watch.copies)

    def fit(self, model: nn.Module, weights: Named) -> bool:
        """True if names, dtypes and shapes are the same and the model's parameters have not moved in memory."""
        return _kinds(weights) == self._of and _places(model) == self._where

    def repeat(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Replays the copies from other weights, as batched kernels where the device has them. Lazily made weights are
        held up to BATCH bytes, or one, at a time."""
        into, parts = list[Tensor](), list[Tensor]()
        for _, place, part in self.pairs(weights):
            into.append(place)
            parts.append(part)
            if sum(tensor.nbytes for tensor in parts) >= BATCH:
                torch._foreach_copy_(into, parts)
                into, parts = [], []
        if parts:  # torch refuses an empty list
            torch._foreach_copy_(into, parts)

    def pairs(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """(name of a weight, memory of the model, part of the weight copied there), for every copy."""
        for name, weight in weights:
            for copy in self._copies.get(name, ()):
                yield name, copy.into, copy.part(weight)


class _Watch(TorchDispatchMode):
    """Dispatch mode that sees each operation below views and autograd, whichever code of vLLM's called it."""

    def __init__(self, model: nn.Module, weights: Named) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: dict[str, list[Copy]] = {}
        self.copied: Counter[str] = Counter()
        """Elements copied of each weight."""
        self._filled: list[Tensor] = []
        self._more = False
        self._model = {t.untyped_storage().data_ptr() for t in _tensors(model)}
        self._weights = [(w.untyped_storage().data_ptr(), *_span(w), name, w) for name, w in weights]

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for given, argument in zip(args, operation._schema.arguments, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(given, Tensor) and given.numel() and self._of_model(given):
                self._write(operation, given, args)
        return result

    def did_more(self) -> bool:
        """True if the model was written from another source, or twice in the same place."""
        copied = (copy.into for copies in self.copies.values() for copy in copies)
        written = [_memory(tensor) for tensor in (*self._filled, *copied)]
        return self._more or any(
            storage == other and begin < last and first < end
            for (storage, begin, end), (other, first, last) in pairwise(sorted(written))
        )

    def _write(self, operation: object, into: Tensor, args: Iterable[object]) -> None:
        if operation in CONSTANT:
            self._filled.append(into.detach())
            return
        if operation is torch.ops.aten.copy_.default:
            _, source, *_ = args
            assert isinstance(source, Tensor)
            if source.shape == into.shape and (pair := self._weight(source)):
                name, weight = pair
                offset = int(source.storage_offset()) - int(weight.storage_offset())
                self.copies.setdefault(name, []).append(Copy(into.detach(), offset, source.stride()))
                self.copied[name] += source.numel()
                return
        self._more = True

    def _of_model(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._model

    def _weight(self, source: Tensor) -> tuple[str, Tensor] | None:
        """The weight whose memory `source` is a view of."""
        storage, (begin, end) = source.untyped_storage().data_ptr(), _span(source)
        for other, first, last, name, weight in self._weights:
            if storage == other and first <= begin and end <= last and source.dtype == weight.dtype:
                return name, weight
        return None


def _span(tensor: Tensor) -> tuple[int, int]:
    """Range of storage elements [first, last + 1) of a view."""
    begin = int(tensor.storage_offset())
    reach = sum(
        int(size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return begin, begin + reach + 1


def _memory(tensor: Tensor) -> tuple[int, int, int]:
    """The storage and the byte range of a tensor in it."""
    begin, end = _span(tensor)
    return tensor.untyped_storage().data_ptr(), begin * tensor.itemsize, end * tensor.itemsize


def _kinds(weights: Named) -> tuple[tuple[object, ...], ...]:
    return tuple((name, weight.dtype, weight.shape, weight.stride()) for name, weight in weights)


def _places(model: nn.Module) -> tuple[int, ...]:
    return tuple(tensor.data_ptr() for tensor in _tensors(model))


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
