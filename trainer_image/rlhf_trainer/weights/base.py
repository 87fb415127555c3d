"""Frozen base weights that generators keep, so that only the trained tensors of each version are sent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from ..models.trained_model import TrainedModel  # DeepSpeed takes seconds to import


@dataclass(frozen=True)
class Base:
    """Frozen weights, which `tensors()` yields under the `fingerprint` that tells them from all others. Generators put
    the trained tensors of a version beside them, and merge matrices of an adapter into them (`maths.low_rank`), at one
    `scale`, and `transposed` where so named."""

    fingerprint: str
    tensors: Callable[[], Iterator[tuple[str, Tensor]]]
    scale: float = 1.0
    transposed: tuple[str, ...] = ()

    @classmethod
    def of(cls, policy: "TrainedModel", tensors: Callable[[], Iterator[tuple[str, Tensor]]]) -> "Base | None":
        """The frozen weights of a policy, below an adapter or not; None where all are trained. `tensors` yields them as
        `TrainedModel.base_tensors` does."""
        if (adapter := policy.adapter) is not None:
            return cls(str(adapter.fingerprint["base"]), tensors, adapter.scale, adapter.transposed)
        return None if policy.frozen is None else cls(policy.frozen, tensors)

    @property
    def itself(self) -> dict[str, Any]:
        """Fields of `ReceiveInfo` for an update that sends this base."""
        return {"part": "base", "base": self.fingerprint}

    @property
    def trained(self) -> dict[str, Any]:
        """Fields of `ReceiveInfo` for an update of what is trained beside this base, or merged into it."""
        merge = {"scale": self.scale, "transposed": list(self.transposed)}
        return {"part": "trained", "base": self.fingerprint, **merge}
