"""Weights to load into a model, merged lazily, and the frozen base that a worker keeps for what is trained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from ....maths.low_rank import MAGNITUDE, A, B, LowRank
from .copy_plan import Named
from .served import Part, fingerprint

ENDS = (A, B, MAGNITUDE)


@dataclass(frozen=True)
class Weights:
    """Weights of a version: `plain` tensors, some with a low-rank update in `updates`."""

    plain: Named
    updates: Mapping[str, LowRank] = field(default_factory=dict)

    def merged(self) -> Iterator[tuple[str, Tensor]]:
        """All weights as they are served; a low-rank update is merged when its tensor is requested."""
        for name, weight in self.plain:
            update = self.updates.get(name)
            yield name, weight if update is None else update.merged(weight)


class HeldBase:
    """Frozen weights that a worker keeps across versions."""

    def __init__(self, name: str, weights: Named) -> None:
        """`name`: the trainer's fingerprint of the weights."""
        self.name, self._weights = name, weights
        buckets = {weight.untyped_storage().data_ptr(): weight for _, weight in weights}
        self.parts = [
            (
                Part(
                    f"bucket {i} of the base", weight.untyped_storage().nbytes(), partial(fingerprint, weight)
                ),
                fingerprint(weight),
            )
            for i, weight in enumerate(buckets.values())
        ]
        """Memory of the base weights, with fingerprints of the tensors as received."""

    def with_trained(self, came: Named, scale: float, transposed: Sequence[str]) -> Weights:
        """The version whose trained tensors `came`: weights that are added to those of the base or replace them, and
        an adapter's matrices A and B, some with magnitudes. Raises ValueError where one has no counterpart or no weight
        of its shape."""
        given = dict(came)
        plain = dict(self._weights) | {n: w for n, w in came if not n.endswith(ENDS)}
        names = {name.removesuffix(end) for name in given for end in ENDS if name.endswith(end)}
        updates = {}
        for name in sorted(names):
            if not {name + A, name + B} <= given.keys() or name not in plain:
                raise ValueError(
                    f"a low-rank update of {name} came without its base weights or one of its two matrices"
                )
            experts = len(plain[name]) if plain[name].dim() == 3 else None
            matrices = given[name + A], given[name + B]
            magnitude = given.get(name + MAGNITUDE)
            updates[name] = LowRank(*matrices, scale, name in transposed, experts, magnitude)
            if updates[name].shape != plain[name].shape:
                was, has = list(updates[name].shape), list(plain[name].shape)
                raise ValueError(f"the low-rank update of {name} has shape {was}, its base weights {has}")
        return Weights(tuple(plain.items()), updates)
