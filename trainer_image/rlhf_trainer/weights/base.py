"""Frozen base weights that generators keep, so that only the trained tensors of each version are sent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from ..models.adapter import Adapter  # PEFT takes two seconds to import


@dataclass(frozen=True)
class Base:
    """Frozen weights, which `tensors()` yields under the `fingerprint` that tells them from all others. Generators
    merge the matrices of a version into them (`maths.low_rank`), at one `scale`, and `transposed` where so named."""

    fingerprint: str
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    scale: float
    transposed: tuple[str, ...] = ()

    @classmethod
    def of(cls, adapter: "Adapter", tensors: Callable[[], Iterator[tuple[str, Tensor]]]) -> "Base":
        """The frozen weights below an adapter; `tensors` yields them as `TrainedModel.base_tensors` does."""
        return cls(str(adapter.fingerprint["base"]), tensors, adapter.scale, adapter.transposed)

    @property
    def itself(self) -> dict[str, Any]:
        """Fields of `ReceiveInfo` for an update that sends this base."""
        return {"part": "base", "base": self.fingerprint}

    @property
    def adapter(self) -> dict[str, Any]:
        """Fields of `ReceiveInfo` for an update that is merged into this base."""
        merge = {"scale": self.scale, "transposed": list(self.transposed)}
        return {"part": "adapter", "base": self.fingerprint, **merge}
