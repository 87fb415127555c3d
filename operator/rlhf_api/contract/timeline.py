"""Record of a step: who did what, from when to when. A line of `timeline.jsonl`, written by the trainer."""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, FiniteFloat

FILE = "timeline.jsonl"
WAIT = "wait for "
"""Begin of the names of spans in which a rank does nothing."""


class Span(NamedTuple):
    """`role`: of the process; `who`: its name, or of the trainer the rank; `begin`, `end`: seconds from the step's
    begin on."""

    role: str
    who: str | int
    what: str
    begin: FiniteFloat
    end: FiniteFloat


class StepTimeline(BaseModel):
    """Keys of other releases are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    step: int
    time: FiniteFloat
    """Begin of the step, in seconds since 1970."""
    seconds: FiniteFloat
    spans: tuple[Span, ...]
