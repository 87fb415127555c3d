"""Each process's work in a step, as the trainer has recorded it; of a step without a record, its parts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from pydantic import ValidationError

from rlhf_api.contract.timeline import FILE, WAIT, Span, StepTimeline
from rlhf_api.roles import Role

from ..folder.run_folder import RunFolder
from ..refusal import Query, Refusal, read_count
from .parts_of_step import list_parts, read_figure

_MOST_STEPS = 1000
_SHORTEST = 1e-3
"""Seconds; a shorter pause is not shown."""
_STEP = re.compile(rb'\{"step": (\d{1,15}),')


def read_timeline(run: RunFolder, query: Query) -> dict[str, Any]:
    """`/runs/{id}/timeline?step=`. Raises Refusal for a step without times."""
    steps = run.metrics.steps
    step = read_count(query, "step", steps[-1] if steps else 0)
    place = run.metrics.after(step) - 1
    if place < 0 or steps[place] != step or (seconds := read_figure(run, "seconds", place)) is None:
        raise Refusal(404, f"the run has no times of step {step}")
    record = next(iter(read_records(run, step, step)), None)
    given = list(record.spans if record else list_parts(run, place))
    spans = list(fill_rows(given, record.seconds if record else seconds))
    idle = {who: _idle(row) for who, row in groupby(spans, name_row)}
    return {
        "step": step,
        "recorded": record is not None,
        "spans": [
            {
                "who": name_row(span),
                "role": span.role,
                "name": span.what,
                "start": span.begin,
                "end": span.end,
            }
            for span in spans
        ],
        "idle": idle,
        "steps": list(steps[-_MOST_STEPS:]),
    }


def read_records(run: RunFolder, first: int, last: int) -> list[StepTimeline]:
    """The records of these steps, in order, of those that the run has kept."""
    records = []
    for line in run.lines(FILE):
        match = _STEP.match(line)
        if match is not None and first <= int(match[1]) <= last:
            try:
                records.append(StepTimeline.model_validate_json(line))
            except ValidationError:
                continue
    return records


def fill_rows(spans: Iterable[Span], seconds: float) -> Iterator[Span]:
    """The spans process by process, ranks first, each in order and with what was between its spans: a rank did
    something else, any other process waited."""
    rows: dict[tuple[str, str | int], list[Span]] = {}
    for span in spans:
        rows.setdefault((span.role, span.who), []).append(span)
    for (role, who), row in sorted(rows.items(), key=_order):
        between = "other" if role == Role.TRAINER else f"{WAIT}work"
        reached = 0.0
        for span in sorted(row, key=lambda span: span.begin):
            if span.begin > reached + _SHORTEST:
                yield Span(role, who, between, reached, span.begin)
            yield span
            reached = max(reached, span.end)
        if seconds > reached + _SHORTEST:
            yield Span(role, who, between, reached, seconds)


def name_row(span: Span) -> str:
    """The process as people know it; a rank with its number."""
    return f"{span.role} rank {span.who}" if isinstance(span.who, int) else span.who


def _order(row: tuple[tuple[str, str | int], Sequence[Span]]) -> tuple[int, str, int, str]:
    role, who = row[0]
    rank = who if isinstance(who, int) else -1
    return 0 if role == Role.TRAINER else 1, role, rank, str(who)


def _idle(row: Iterable[Span]) -> float:
    return round(sum(span.end - span.begin for span in row if span.what.startswith(WAIT)), 4)
