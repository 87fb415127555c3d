"""Replies about a run's samples: a page of those that a request chooses, one of them, and their scores in bins."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from ...archive.sample_columns import Columns
from ...archive.sample_index import Placed, SampleIndex
from ...archive.sample_order import Order, count_scored, order_places
from ..refusal import Query, Refusal, read_choice, read_count
from .sample_choice import Samples, choose, find_place, match_lines, take_page

_SHOWN, _MOST_SHOWN = 50, 500
_ORDERS: tuple[Order, ...] = ("newest", "oldest", "best", "worst")
Reply = dict[str, Any]
_MOST_RECENT = 4
_ROLES = {"policy": "model", "environment": "environment", "given": "given"}


def recall(index: Samples, reply: Callable[[Samples, Query], Reply], query: Query) -> Reply:
    """A reply to a query, the last one again while the samples are the same: a page asks every other second."""
    key = reply, frozenset(query.items())
    if key not in index.recent:
        if len(index.recent) >= _MOST_RECENT:
            index.recent.pop(next(iter(index.recent)))
        index.recent[key] = reply(index, query)
    return index.recent[key]


def list_samples(index: Samples, query: Query) -> dict[str, Any]:
    """`/runs/{id}/samples`: a page of the chosen samples, the `id` from which the next one goes on, and all steps that
    have some."""
    columns, words = index.columns, query.get("search", "")
    order = read_choice(query, "order", _ORDERS)
    limit = read_count(query, "limit", _SHOWN, 1, _MOST_SHOWN)
    places = choose(columns, query)
    count = count_scored(columns, places) if order in ("best", "worst") else len(places)
    before, after = query.get("before"), None
    if before and (after := find_place(columns, before)) is None:
        raise Refusal(400, f"before must be the id of a sample; got {before[:40]!r}")
    ordered = order_places(columns, places, order, after, None if words else limit + 1)
    page = take_page(index, ordered, words, limit)
    return {
        "samples": [describe(each) for each in page.samples],
        "next": _id_of(columns, page.last) if page.has_more and page.last is not None else None,
        "count": count,
        "searched": page.examined if words else None,
        "total": len(columns),
        "whole": index.is_whole,
        "steps": list_steps(columns),
    }


def find_sample(index: SampleIndex, id: str) -> tuple[Placed, int]:
    """The sample of an id, and the number of equal responses to its prompt before it in its step. Raises Refusal."""
    place = find_place(index.columns, id)
    if place is None or not (match := index.read([place])):
        raise Refusal(
            404, "no such sample; a long run keeps fewer and fewer steps (spec.samples.maxMegabytes)"
        )
    (placed,) = match
    earlier = index.read(
        other
        for other in range(index.columns.begin_of(place), place)
        if index.columns.groups[other] == placed.group
    )
    return placed, sum(other.sample.response == placed.sample.response for other in earlier)


def count_scores(index: Samples, query: Query) -> dict[str, Any]:
    """`/runs/{id}/scores`: a histogram of the scores of a step's samples, or of all; with words of as many of the
    newest as the time allows."""
    columns, words = index.columns, query.get("search", "")
    bins = read_count(query, "bins", 20, 1, 200)
    places = choose(columns, query)
    is_whole = index.is_whole or "step" in query  # a step is there as a whole, or not at all
    if words:
        places, is_over = _search(index, places, words)
        is_whole = is_whole and is_over
    if not places:
        raise Refusal(404, "no sample there has a score")
    scores = columns.scores
    values = array("d", (scores[place] for place in places if -inf < scores[place] < inf))
    if not values:
        raise Refusal(404, "no sample there has a score")
    steps = [columns.steps[places[0]], columns.steps[places[-1]]]
    return {
        **_count(values, bins),
        "unscored": len(places) - len(values),
        "samples": len(places),
        "steps": steps,
        "whole": is_whole,
    }


def list_steps(columns: Columns) -> list[int]:
    """All steps that have samples."""
    steps, place = list[int](), len(columns) - 1
    while place >= 0:
        steps.append(columns.steps[place])
        place = columns.begin_of(place) - 1
    return steps[::-1]


def describe(placed: Placed) -> dict[str, Any]:
    """A sample as the page has it."""
    sample = placed.sample
    return {
        "id": placed.id,
        "group": placed.group_id,
        "step": sample.step,
        "promptId": sample.prompt_id,
        "prompt": sample.prompt,
        "response": sample.response,
        "score": sample.score,
        "parts": dict(sample.rewards),
        "advantage": sample.advantage,
        "finished": sample.finished,
        "version": sample.weight_version,
        "promptTokens": sample.prompt_length,
        "tokens": sample.response_length,
        "turns": [
            {"role": _ROLES[turn.by], "text": turn.text, "reward": turn.reward} for turn in sample.turns
        ],
    }


def _search(index: Samples, places: Sequence[int], words: str) -> tuple[list[int], bool]:
    """Those that have the words, the oldest first, and False if the time was over before all were read."""
    matching = list[int]()
    for place, line in match_lines(index, reversed(places), words):
        if line is None:
            return matching[::-1], False
        if line:
            matching.append(place)
    return matching[::-1], True


def _count(values: Sequence[float], bins: int) -> dict[str, list[float] | list[int]]:
    """Edges of bins and the count in each; one bin if all values are the same."""
    low, high = min(values), max(values)
    width = (high - low) / bins
    if not 0 < width < inf:
        return {"edges": [low, high], "counts": [len(values)]}
    counts = Counter(min(bins - 1, int((value - low) / width)) for value in values)
    edges = [*(low + width * place for place in range(bins)), high]
    return {"edges": edges, "counts": [counts[place] for place in range(bins)]}


def _id_of(columns: Columns, place: int) -> str:
    return f"{columns.steps[place]}.{columns.numbers[place]}"
