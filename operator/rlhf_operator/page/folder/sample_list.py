"""A run's samples, read as they are appended, and the pages of them that a request chooses."""

from collections import Counter, deque
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_api.contract.samples import Sample
from rlhf_api.sections.samples import SAMPLES

from ...archive.samples import Order, order_samples, parse_samples
from ..refusal import Query, Refusal, read_choice, read_count, read_number
from .files import Fetch, GrowingFile, leave

MOST_BYTES, MOST_SAMPLES = 24 << 20, 32_000
"""Of samples in memory; beyond them the oldest are left out."""
_OVERHEAD = 1600
"""Bytes that a sample takes beside its texts."""
_SHOWN, _MOST_SHOWN = 50, 500
_ORDERS: tuple[Order, ...] = ("newest", "oldest", "best", "worst")
_ROLES = {"policy": "model", "environment": "environment"}


class Placed(NamedTuple):
    """A sample, its place among those of its step, and the place of the first one of its group."""

    sample: Sample
    number: int
    group: int
    size: int

    @property
    def id(self) -> str:
        return f"{self.sample.step}.{self.number}"

    @property
    def group_id(self) -> str:
        return f"{self.sample.step}.{self.group}"


class SampleList:
    """The samples of a run's folder, the oldest first. Not for several threads at once."""

    def __init__(self, folder: Path, fetch: Fetch = leave) -> None:
        """`fetch`: see GrowingFile."""
        self._file = GrowingFile(folder, SAMPLES, fetch, MOST_BYTES)
        self._samples = deque[Placed]()
        self.bytes = 0
        """Size of the samples' lines."""
        self._groups: dict[str, int] = {}
        """Of the newest step."""

    @property
    def memory_bytes(self) -> int:
        """About."""
        return self.bytes + _OVERHEAD * len(self._samples)

    def refresh(self) -> Sequence[Placed]:
        """The samples up to now."""
        is_new, lines = self._file.begin()
        if is_new:
            self._samples.clear()
            self.bytes = 0
        for line in lines:
            for sample in parse_samples([line]):
                self._add(sample, len(line))
        return self._samples

    def _add(self, sample: Sample, size: int) -> None:
        newest = self._samples[-1] if self._samples else None
        goes_on = newest is not None and newest.sample.step == sample.step
        number = newest.number + 1 if newest is not None and goes_on else 0
        if number == 0:
            self._groups = {}
        group = self._groups.setdefault(sample.prompt_id, number)
        self._samples.append(Placed(sample, number, group, size))
        self.bytes += size
        while self.bytes > MOST_BYTES or len(self._samples) > MOST_SAMPLES:
            self.bytes -= self._samples.popleft().size


def list_samples(samples: Sequence[Placed], query: Query) -> dict[str, Any]:
    """`/runs/{id}/samples`: a page of the chosen samples, the `id` from which the next one goes on, and all steps that
    have some."""
    order = read_choice(query, "order", _ORDERS)
    limit = read_count(query, "limit", _SHOWN, 1, _MOST_SHOWN)
    ordered = order_samples(_choose(samples, query), order, lambda each: each.sample)
    begin = 0
    if before := query.get("before"):
        places = [place for place, each in enumerate(ordered) if each.id == before]
        if not places:
            raise Refusal(400, f"before must be the id of a chosen sample; got {before[:40]!r}")
        begin = places[0] + 1
    page = ordered[begin : begin + limit]
    return {
        "samples": [describe(each) for each in page],
        "next": page[-1].id if begin + limit < len(ordered) else None,
        "count": len(ordered),
        "steps": sorted({each.sample.step for each in samples}),
    }


def find_sample(samples: Sequence[Placed], id: str) -> tuple[Placed, int]:
    """The sample of an id, and the number of equal responses to its prompt before it in its step. Raises Refusal."""
    match = next((each for each in samples if each.id == id), None)
    if match is None:
        raise Refusal(
            404, "no such sample; a long run keeps fewer and fewer steps (spec.samples.maxMegabytes)"
        )
    same = Counter(
        each.sample.response
        for each in samples
        if each.group_id == match.group_id and each.number < match.number
    )
    return match, same[match.sample.response]


def count_scores(samples: Sequence[Placed], query: Query) -> dict[str, Any]:
    """`/runs/{id}/scores`: a histogram of the scores of a step's samples, or of all."""
    bins = read_count(query, "bins", 20, 1, 200)
    scores = [each.sample.score for each in _choose(samples, query)]
    values = sorted(score for score in scores if score is not None and -inf < score < inf)
    if not values:
        raise Refusal(404, "no sample there has a score")
    low, high = values[0], values[-1]
    width = (high - low) / bins
    if not 0 < width < inf:
        return {"edges": [low, high], "counts": [len(values)], "unscored": len(scores) - len(values)}
    counts = Counter(min(bins - 1, int((value - low) / width)) for value in values)
    edges = [*(low + width * place for place in range(bins)), high]
    return {
        "edges": edges,
        "counts": [counts[place] for place in range(bins)],
        "unscored": len(scores) - len(values),
    }


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


def _choose(samples: Sequence[Placed], query: Query) -> list[Placed]:
    """Those that the query's step, group, prompt, scores and words leave."""
    step = read_count(query, "step", -1)
    group, prompt, words = query.get("group"), query.get("prompt"), query.get("search", "").casefold()
    low, high = read_number(query, "low", -inf), read_number(query, "high", inf)
    is_scored = "low" in query or "high" in query

    def is_chosen(each: Placed) -> bool:
        sample = each.sample
        return (
            (step == -1 or sample.step == step)
            and (not group or each.group_id == group)
            and (not prompt or prompt in (sample.prompt_id, sample.prompt))
            and (not is_scored or (sample.score is not None and low <= sample.score <= high))
            and (not words or words in sample.prompt.casefold() or words in sample.response.casefold())
        )

    return [each for each in samples if is_chosen(each)]
