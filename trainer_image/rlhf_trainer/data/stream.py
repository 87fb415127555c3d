"""Sample order of a run, and the mixture of its sources."""

import random
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem


@dataclass(frozen=True)
class Mixture:
    """Row count and samples per epoch of each source. Rows are numbered through all sources."""

    counts: tuple[int, ...]
    shares: tuple[int, ...]

    @classmethod
    def weighted(
        cls, counts: Sequence[int], weights: Sequence[float] | None, samples: int | None
    ) -> "Mixture":
        """`samples` an epoch (the rows of all sources unless given), by weight (by rows unless given): the largest
        remainders are rounded up. Raises ValueError where a source would get none."""
        total, by = samples or sum(counts), weights or counts
        exact = [total * weight / sum(by) for weight in by]
        shares = [int(share) for share in exact]
        for i in sorted(range(len(by)), key=lambda i: shares[i] - exact[i])[: total - sum(shares)]:
            shares[i] += 1
        if 0 in shares:
            raise ValueError(
                f"{total} samples an epoch leave none for source {shares.index(0)}; raise its weight, or their number"
            )
        return cls(tuple(counts), tuple(shares))

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return self._ends[-1]

    def row(self, slot: int, epoch: int, seed: int) -> tuple[int, int]:
        """(pass over its source, row) of the sample `slot` of an epoch.

        A source whose rows are all taken each epoch has one pass per epoch. Any other is cycled through across epochs,
        reshuffled at each pass, so that its rows come equally often.
        """
        source = bisect_right(self._ends, slot)
        count, share = self.counts[source], self.shares[source]
        within, first = slot - (self._ends[source] - share), self._firsts[source]
        if share == count:
            return epoch, first + within
        turn, place = divmod(epoch * share + within, count)
        return turn, first + epoch_order(count, f"{seed}/{source}", turn)[place]

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(self.shares))

    @cached_property
    def _firsts(self) -> list[int]:
        return [0, *accumulate(self.counts)]


@dataclass
class RowStream:
    """Endless sample stream; the order within an epoch depends on seed and epoch alone.

    Its state is the position and the `reorders`, so a resumed run sees the same rows as an uninterrupted one.
    """

    mixture: Mixture
    seed: int
    position: int = 0
    reorders: tuple[int, ...] = ()
    """Positions, ascending, from which the remaining samples were reshuffled."""

    def take(self, n: int) -> list[tuple[int, int]]:
        """The next n samples as (pass over the row's source, row): no two are equal. With one source, and as many
        samples as rows, a pass is an epoch."""
        samples = self.peek(n)
        self.position += n
        return samples

    def peek(self, n: int) -> list[tuple[int, int]]:
        """The samples that `take` will return."""
        return self.at(range(self.position, self.position + n))

    def at(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """The samples at these positions, as `take` returns them."""
        samples = self.mixture.samples
        places = [divmod(position, samples) for position in positions]
        orders = {epoch: self._order(samples, epoch) for epoch, _ in places}
        slots = [(epoch, orders[epoch][place]) for epoch, place in places]
        return [self.mixture.row(slot, epoch, self.seed) for epoch, slot in slots]

    def reorder(self, times: int) -> None:
        """Reshuffles the remaining samples, that many times; each still comes once an epoch."""
        self.reorders += (self.position,) * times

    def state(self) -> dict[str, Any]:
        """Part of a snapshot's JSON."""
        return {
            "position": self.position,
            "reorders": list(self.reorders),
            "samples": self.mixture.samples,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state`. Raises InvalidJob if the number of samples has changed, since positions would be of other
        epochs."""
        before, now = state.get("samples", self.mixture.samples), self.mixture.samples
        if before != now:
            message = (
                f"the checkpoint belongs to a run with {before} samples an epoch; got {now}; "
                "go on with the same data, or start anew from the exported model"
            )
            raise InvalidJob([Problem("spec.data.train", message)])
        self.position, self.reorders = state["position"], tuple(state.get("reorders", ()))

    def _order(self, samples: int, epoch: int) -> Sequence[int]:
        starts = tuple(max(0, p - epoch * samples) for p in self.reorders if p < (epoch + 1) * samples)
        return epoch_order(samples, str(self.seed), epoch, starts)


@lru_cache(maxsize=64)
def epoch_order(count: int, seed: str, epoch: int, reorders: tuple[int, ...] = ()) -> Sequence[int]:
    """Permutation of 0 ... count - 1 for an epoch or pass, four bytes each; the part after each position of `reorders`
    is reshuffled, one after the other."""
    order = array("I", range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    for number, place in enumerate(reorders):
        rest = order[place:]
        random.Random(f"{seed}/{epoch}/{number}").shuffle(rest)
        order[place:] = rest
    return order
