"""The order in which a run sees the rows of its dataset."""

import random
from dataclasses import dataclass
from functools import lru_cache


@dataclass
class RowStream:
    """Rows without end: every row once in each epoch, in an order that depends on seed and epoch alone.

    Its state is the position, so a resumed run sees exactly the rows that an undisturbed one would have.
    """

    count: int
    seed: int
    position: int = 0

    def take(self, n: int) -> list[tuple[int, int]]:
        """The next n rows as (epoch, row)."""
        places = [divmod(position, self.count) for position in range(self.position, self.position + n)]
        self.position += n
        return [(epoch, epoch_order(self.count, self.seed, epoch)[place]) for epoch, place in places]


@lru_cache(maxsize=2)
def epoch_order(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The rows 0 ... count - 1 as an epoch sees them."""
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return tuple(order)
