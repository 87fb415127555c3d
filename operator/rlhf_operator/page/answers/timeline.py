"""The parts of a step in seconds, from the figures that the trainer measured of it."""

from math import isfinite
from typing import Any

from ..folder.run_folder import RunFolder
from ..refusal import Query, Refusal, read_count

_PARTS = (
    ("generate_seconds", "waits for responses"),
    ("score_seconds", "scores"),
    ("train_seconds", "trains"),
    ("broadcast_seconds", "publishes"),
)
"""Of the trainer, in the order of a step."""
_MOST_STEPS = 1000


def read_timeline(run: RunFolder, query: Query) -> dict[str, Any]:
    """`/runs/{id}/timeline?step=`: what the trainer did in the step, part after part, the rest of its time as
    `other`, and generators while it waits for them. Raises Refusal for a step without figures."""
    steps = run.metrics.steps
    step = read_count(query, "step", steps[-1] if steps else 0)
    place = run.metrics.after(step) - 1
    if place < 0 or steps[place] != step or (whole := _value(run, "seconds", place)) is None:
        raise Refusal(404, f"the run has no times of step {step}")
    spans, end = [], 0.0
    for figure, name in _PARTS:
        if seconds := _value(run, figure, place):
            spans.append(_span(name, "trainer", end, end + seconds))
            end += seconds
    if whole > end:
        spans.append(_span("other", "trainer", end, whole))
    waited = _value(run, "generate_seconds", place)
    idle = {"trainer": waited or 0.0}
    share = _value(run, "generator_idle_share", place)
    if waited is not None and share is not None:
        spans.append(_span("generate", "generator", 0.0, max(waited, whole * (1 - share))))
        idle["generator"] = whole * share
    return {"step": step, "spans": spans, "idle": idle, "steps": list(steps[-_MOST_STEPS:])}


def _span(name: str, role: str, start: float, end: float) -> dict[str, Any]:
    return {"name": name, "role": role, "rank": None, "start": start, "end": end}


def _value(run: RunFolder, name: str, place: int) -> float | None:
    values = run.metrics.values(name)
    value = values[place] if values else None
    return value if value is not None and isfinite(value) and value >= 0 else None
