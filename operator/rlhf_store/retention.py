"""Which cuts stay."""

from collections.abc import Sequence
from dataclasses import dataclass

from .manifest import Entry


@dataclass(frozen=True)
class Retention:
    """The `last` newest cuts; those whose step is a multiple of `every`; the `best` by evaluation reward. 0: none."""

    last: int = 2
    every: int = 0
    best: int = 0

    def keep(self, cuts: Sequence[Entry]) -> tuple[Entry, ...]:
        """Those of `cuts` (by ascending step) that stay, in their order; always the newest."""
        kept = set(range(len(cuts) - max(1, self.last), len(cuts)))
        judged = [(cut.reward, cut.step, i) for i, cut in enumerate(cuts) if cut.reward is not None]
        kept |= {i for _, _, i in sorted(judged, reverse=True)[: self.best]}
        return tuple(
            cut for i, cut in enumerate(cuts) if i in kept or (self.every and cut.step % self.every == 0)
        )
