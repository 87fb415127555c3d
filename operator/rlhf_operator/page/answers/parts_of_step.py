"""The parts of a step in seconds, from the figures that the trainer measured of it: for steps without a record."""

from collections.abc import Iterator
from math import isfinite

from rlhf_api.contract.timeline import WAIT, Span

from ..folder.run_folder import RunFolder

_PARTS = (
    ("generate_seconds", f"{WAIT}responses"),
    ("score_seconds", "score"),
    ("train_seconds", "train"),
    ("broadcast_seconds", "publish"),
)
"""Of the trainer, in the order of a step."""


def list_parts(run: RunFolder, place: int) -> Iterator[Span]:
    """The trainer's work in the step at this place of the run's figures, part after part, and generators while it
    waited for them."""
    end = 0.0
    for figure, what in _PARTS:
        if seconds := read_figure(run, figure, place):
            yield Span("trainer", "trainer", what, end, end + seconds)
            end += seconds
    whole = read_figure(run, "seconds", place)
    if whole is not None and whole > end:
        yield Span("trainer", "trainer", "other", end, whole)
    waited, share = (read_figure(run, name, place) for name in ("generate_seconds", "generator_idle_share"))
    if waited is not None and share is not None and whole is not None:
        yield Span("generator", "generators", "generate", 0.0, max(waited, whole * (1 - share)))


def read_figure(run: RunFolder, name: str, place: int) -> float | None:
    """A figure of the step at this place; None where it has none that a time can be."""
    values = run.metrics.values(name)
    value = values[place] if values else None
    return value if value is not None and isfinite(value) and value >= 0 else None
