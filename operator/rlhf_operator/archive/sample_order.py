"""The order of samples by their columns: by step or by score, from one of them on."""

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal

from .sample_columns import Columns

_BLOCK = 1 << 15
Order = Literal["newest", "oldest", "best", "worst"]


def of_steps(columns: Columns, first: float, last: float | None = None) -> range:
    """Places of the samples of a step, or of one and those up to another."""
    return range(
        bisect_left(columns.steps, first), bisect_right(columns.steps, first if last is None else last)
    )


def count_scored(columns: Columns, places: Iterable[int]) -> int:
    """The number of those that have a score."""
    scores = columns.scores
    return sum(scores[place] == scores[place] for place in places)


def order_places(
    columns: Columns, places: Sequence[int], order: Order, after: int | None, most: int | None
) -> Iterable[int]:
    """Places in the order of a page, those behind one of them; of the best and the worst those that have a score,
    and no more than so many."""
    if order == "oldest":
        return places if after is None else places[bisect_right(places, after) :]
    if order == "newest":
        return _order_newest(columns.steps, places, after)
    sign, scores = (-1 if order == "best" else 1), columns.scores

    def key(place: int) -> tuple[float, int]:
        return sign * scores[place], place

    scored = (place for place in places if scores[place] == scores[place])
    if after is not None:
        last = key(after)
        scored = (place for place in scored if key(place) > last)
    return _sort(scored, key) if most is None else heapq.nsmallest(most, scored, key=key)


def _sort(places: Iterator[int], key: Callable[[int], tuple[float, int]]) -> Iterator[int]:
    """Sorts blocks, and merges them as they are read: a list of all with their keys would take 140 bytes each."""
    blocks: list[array[int]] = []
    while block := list(islice(places, _BLOCK)):
        blocks.append(array("q", sorted(block, key=key)))
    return heapq.merge(*blocks, key=key)


def _order_newest(steps: Sequence[int], places: Sequence[int], after: int | None) -> Iterator[int]:
    """Step after step, the newest first; within one in the order of the file."""
    end = len(places)
    if after is not None:
        end = bisect_left(places, steps[after], key=steps.__getitem__)
        rest = bisect_right(places, after), bisect_right(places, steps[after], key=steps.__getitem__)
        yield from places[slice(*rest)]
    while end:
        begin = bisect_left(places, steps[places[end - 1]], 0, end, key=steps.__getitem__)
        yield from places[begin:end]
        end = begin
