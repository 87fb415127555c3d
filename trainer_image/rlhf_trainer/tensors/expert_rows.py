"""Rows of the experts that a mixture's routers chose, as an engine gives them: of each token, in each layer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

UNKNOWN = -1
"""Expert of a token of which nobody knows what was chosen: its router chooses."""
_NARROW = 256


@dataclass(frozen=True)
class ExpertsShape:
    """Of a row, [layers, chosen]: in each of a model's layers the experts chosen for a token, of `experts`. As bytes
    little-endian, uint8 where that has all experts, else uint16."""

    layers: int
    chosen: int
    experts: int

    @property
    def dtype(self) -> np.dtype:
        return np.dtype("<u1" if self.experts <= _NARROW else "<u2")

    @property
    def row_bytes(self) -> int:
        return self.layers * self.chosen * self.dtype.itemsize

    def parse(self, data: bytes) -> np.ndarray:
        """Rows of untrusted bytes, whole ones: int16 [n, layers, chosen]. Raises ValueError for an expert that the
        model has not, or one that a token has twice in a layer."""
        rows = np.frombuffer(data, self.dtype).reshape(-1, self.layers, self.chosen).astype(np.int16)
        check_experts(rows, self.experts)
        return rows


def check_experts(rows: np.ndarray, experts: int) -> None:
    """Raises ValueError unless the experts of each token and layer, int16 [..., K], are different ones of `experts`."""
    if rows.size and not 0 <= rows.min() <= rows.max() < experts:
        raise ValueError(f"experts are 0 to {experts - 1}; got {rows.min()} to {rows.max()}")
    ordered = np.sort(rows, axis=-1)
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise ValueError("a token has one expert twice in a layer")


class ExpertRows:
    """Rows of the first tokens of a prompt and its response, in their order: parts of int16 [n, layers, chosen]."""

    def __init__(self, parts: Iterable[np.ndarray] = ()) -> None:
        self.parts = list(parts)
        self._count = sum(map(len, self.parts))

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExpertRows) and np.array_equal(self.whole(), other.whole())

    def add(self, parts: Iterable[np.ndarray]) -> None:
        for part in parts:
            self.parts.append(part)
            self._count += len(part)

    def fill(self, count: int, shape: Sequence[int]) -> None:
        """Extends to `count` rows, of `shape`, with unknown ones."""
        if count > self._count:
            self.add([np.full((count - self._count, *shape), UNKNOWN, dtype=np.int16)])

    def cut(self, count: int) -> None:
        """Removes the last `count` rows, or all."""
        left = max(self._count - count, 0)
        while self._count > left:
            part = self.parts.pop()
            self._count -= len(part)
            self.add([part[: left - self._count]] if self._count < left else ())

    def copy(self) -> Self:
        return type(self)(self.parts)

    def whole(self) -> np.ndarray:
        """All rows: int16 [n, layers, chosen]; without any [0, 0, 0]."""
        return np.concatenate(self.parts) if self.parts else np.zeros((0, 0, 0), dtype=np.int16)


def pack_rows(pairs: Sequence[tuple[ExpertRows, int]]) -> Tensor | None:
    """Rows of several sequences end to end, each extended to its number of tokens with unknown ones: int16 [sum, L, K];
    None if no row is known."""
    known = [rows.whole() for rows, _ in pairs]
    shape = next((each.shape[1:] for each in known if len(each)), None)
    if shape is None:
        return None
    flat = torch.full((sum(count for _, count in pairs), *shape), UNKNOWN, dtype=torch.int16)
    at = 0
    for each, (_, count) in zip(known, pairs, strict=True):
        if len(each):
            flat[at : at + len(each)] = torch.from_numpy(each)
        at += count
    return flat
