"""The order of samples by their columns: by step or by score, from one of them on."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from .sample_columns import Columns

Order = Literal["newest", "oldest", "best", "worst"]


def of_steps(columns: Columns, first: float, last: float | None = None) -> range:
    """Places of the samples of a step, or of one and those up to another."""
    return range(
        bisect_left(columns.steps, first), bisect_right(columns.steps, first if last is None else last)
    )


def drop_unscored(columns: Columns, places: Sequence[int]) -> Sequence[int]:
    """Places of those that have a score."""
    scores = columns.scores
    return [place for place in places if scores[place] == scores[place]]


def order_places(
    columns: Columns, places: Sequence[int], order: Order, after: int | None, most: int | None
) -> Iterable[int]:
    """Places in the order of a page, those behind one of them, and no more than so many of the best or the worst, all
    of which have a score."""
    if order == "oldest":
        return places if after is None else places[bisect_right(places, after) :]
    if order == "newest":
        return _order_newest(columns.steps, places, after)
    sign, scores = (-1 if order == "best" else 1), columns.scores

    def key(place: int) -> tuple[float, int]:
        return sign * scores[place], place

    if after is not None:
        last = key(after)
        places = [place for place in places if key(place) > last]
    return sorted(places, key=key) if most is None else heapq.nsmallest(most, places, key=key)


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
