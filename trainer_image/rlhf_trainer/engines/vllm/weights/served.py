"""Fingerprints of the memory that a model computes with: verify that it holds, and keeps, the loaded weights."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ....weights.digest import lanes

WORD = 8
"""Bytes; the hash works on pairs of int32."""
Pair = tuple[str, Tensor, Tensor]
"""Name of a weight, the part of the model's memory that holds a part of it, and that part as received."""


@dataclass(frozen=True)
class Part:
    """Memory of a model, `nbytes` long, named after its parameter or module."""

    name: str
    nbytes: int
    fingerprint: Callable[[], Tensor]


class Served:
    """Verifies the serving memory of `model`. After a load, every part gets a fingerprint and is compared with the
    tensors received; later the fingerprints are recomputed in turn. Each call reads `most` bytes, and at least one
    part, so that the engine is never blocked for long.

    Parts are the memory of parameters as it lies there, fused, sharded or repacked, shared memory (tied weights) once.
    Weights that a CPU engine packs outside torch tensors are fingerprinted by their product with a fixed vector.
    """

    def __init__(self, model: nn.Module) -> None:
        self.changed: str | None = None
        """The first part found changed, and how; never reset."""
        self._model = model
        self._version = -1
        self._parts: list[tuple[Part, Tensor]] = []
        self._next = 0
        self._proof: Iterator[int] = iter(())

    def loaded(
        self, version: int, arrived: Iterable[Pair], made_of: Sequence[tuple[Part, Tensor]] = ()
    ) -> None:
        """Weights of `version` serve from now on; `arrived` is read, and kept alive, until `prove` is done. They were
        made of memory with the fingerprints `made_of` at arrival."""
        self._version, self._parts, self._next = version, [], 0
        self._proof = self._proving(arrived, made_of)

    def prove(self, most: float = math.inf) -> bool:
        """Verifies the next parts; True once every part has its fingerprint and equals what arrived, as far as that can
        be compared.
        """
        return _spend(self._proof, most)

    def recheck(self, most: float = math.inf) -> None:
        """Recomputes the fingerprints of the next parts, after completing `prove`."""
        self.prove()
        _spend(self._rechecking(), most)

    def forget(self) -> None:
        """The weights loaded last are not kept: nothing is verified until others are loaded."""
        self._parts, self._next, self._proof = [], 0, iter(())

    def _proving(self, arrived: Iterable[Pair], made_of: Sequence[tuple[Part, Tensor]]) -> Iterator[int]:
        # In this order a change in between is detected, by the comparison or by the next fingerprint.
        for part in parts(self._model):
            self._parts.append((part, part.fingerprint()))
            yield part.nbytes
        for part, expected in made_of:
            if not torch.equal(part.fingerprint(), expected):
                self._record_change(
                    f"{part.name} is no longer what arrived, of which weight version {self._version} is made"
                )
            yield part.nbytes
        for name, served, came in arrived:
            if not _same(served, came):
                self._record_change(f"{name} is not what arrived as weight version {self._version}")
            yield 2 * served.nbytes

    def _rechecking(self) -> Iterator[int]:
        for _ in self._parts:
            part, expected = self._parts[self._next]
            self._next = (self._next + 1) % len(self._parts)
            if not torch.equal(part.fingerprint(), expected):
                self._record_change(
                    f"{part.name} is no longer what was loaded as weight version {self._version}"
                )
            yield part.nbytes

    def _record_change(self, what: str) -> None:
        self.changed = self.changed or what


def parts(model: nn.Module) -> Iterator[Part]:
    """All parts of a model, each looked up by name whenever its fingerprint is computed."""
    storages = set()
    for name, parameter in model.named_parameters():
        storage = parameter.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in storages:
            storages.add(storage.data_ptr())
            yield Part(name, storage.nbytes(), partial(_of_parameter, model, name))
    for name, module in model.named_modules():
        if hasattr(module, "cpu_linear") and not module.weight.is_meta:
            weights = _width(module) * sum(module.output_partition_sizes)
            yield Part(name, weights * module.weight.itemsize, partial(_of_product, module))


def fingerprint(tensor: Tensor) -> Tensor:
    """Hash of `weights.digest` over all bytes of a tensor's storage, whatever its layout: int64 [chunks, 2], on its
    device, without a synchronisation."""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    if rest := len(raw) % WORD:
        raw = torch.cat([raw, raw.new_zeros(WORD - rest)])
    return lanes(raw.view(torch.int32))


def _of_parameter(model: nn.Module, name: str) -> Tensor:
    return fingerprint(model.get_parameter(name).detach())


@torch.no_grad()
def _of_product(module: Any) -> Tensor:
    """Fingerprint by W x for one fixed x: a change of any weight changes it, as far as rounding shows."""
    x = torch.linspace(1, 2, _width(module)).to(module.weight.dtype)[None]
    return fingerprint(module.cpu_linear(x, module.weight, None))


def _width(module: Any) -> int:
    width: int = getattr(module, "input_size_per_partition", module.input_size)
    return width


def _same(served: Tensor, came: Tensor) -> bool:
    """Bitwise equality, after the dtype conversion of the copy."""
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[served.itemsize]
    return torch.equal(served.view(words), came.to(served.dtype).view(words))


def _spend(steps: Iterator[int], most: float) -> bool:
    """Runs steps, each of which yields its number of bytes, until `most` is reached; returns whether all are done."""
    for nbytes in steps:
        most -= nbytes
        if most <= 0:
            return False
    return True
