"""Chooses and orders samples by their columns, and searches the texts of those for a limited time."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple, Protocol

from ...archive.sample_columns import Columns, read_sample
from ...archive.sample_index import Placed
from ...archive.sample_order import of_steps
from ..refusal import Query, read_count, read_number

SEARCH_SECONDS = 1.0
"""Of one reply; the next page goes on."""
_AT_ONCE = 64
"""Lines between two looks at the clock."""
_ID = re.compile(r"(\d{1,15})\.(\d{1,15})", re.ASCII)


class Samples(Protocol):
    """Rows that samples are chosen from: a SampleIndex, or EpisodeRows."""

    columns: Columns
    recent: dict[Any, dict[str, Any]]

    @property
    def is_whole(self) -> bool: ...

    def read_lines(self, places: Iterable[int]) -> Iterator[tuple[int, bytes]]: ...

    def parse(self, place: int, line: bytes) -> Placed | None: ...


class Chosen(NamedTuple):
    """Samples of a page; the place of the last one that was examined, None without one; how many were examined; and
    whether there may be more."""

    samples: list[Placed]
    last: int | None
    examined: int
    has_more: bool


def choose(columns: Columns, query: Query) -> Sequence[int]:
    """Places of the samples that the query's step, group, prompt and scores leave. Raises Refusal."""
    places: Sequence[int] = range(len(columns))
    if (step := read_count(query, "step", -1)) != -1:
        places = of_steps(columns, step)
    if group := query.get("group"):
        first = find_place(columns, group)
        places = [
            place
            for place in (() if first is None else of_steps(columns, columns.steps[first]))
            if place in places and columns.groups[place] == columns.numbers[first or 0]
        ]
    if prompt := query.get("prompt"):
        digest, ids, prompts = hash(prompt), columns.ids, columns.prompts
        places = [place for place in places if digest in (ids[place], prompts[place])]
    low, high = read_number(query, "low", -inf), read_number(query, "high", inf)
    if "low" in query or "high" in query:
        scores = columns.scores
        places = [place for place in places if low <= scores[place] <= high]
    return places


def find_place(columns: Columns, id: str) -> int | None:
    """The place of the sample with this id; None without one."""
    if not (match := _ID.fullmatch(id)):
        return None
    places, number = of_steps(columns, int(match[1])), int(match[2])
    return places[number] if number < len(places) else None


def take_page(index: Samples, places: Iterable[int], words: str, limit: int) -> Chosen:
    """The first samples, or with words the first ones that have them in prompt or response."""
    samples, last, examined = list[Placed](), None, 0
    for place, line in match_lines(index, places, words):
        if line is None:  # the time is over
            return Chosen(samples, last, examined, True)
        if len(samples) == limit:
            return Chosen(samples, last, examined, True)
        last, examined = place, examined + 1
        if line and (placed := index.parse(place, line)):
            samples.append(placed)
    return Chosen(samples, last, examined, False)


def match_lines(index: Samples, places: Iterable[int], words: str) -> Iterator[tuple[int, bytes | None]]:
    """Places with the lines of those that have the words, empty lines of others, and None once the time is over."""
    folded, deadline = words.casefold(), time.monotonic() + SEARCH_SECONDS
    for count, (place, line) in enumerate(index.read_lines(places)):
        if folded and count and count % _AT_ONCE == 0 and time.monotonic() > deadline:
            yield place, None
            return
        yield place, line if not folded or _has_words(line, folded) else b""


def _has_words(line: bytes, folded: str) -> bool:
    sample = read_sample(line)
    return sample is not None and any(folded in sample[key].casefold() for key in ("prompt", "response"))
