"""The timeline of some steps as a trace that Perfetto and Chrome open: the Trace Event Format's JSON object.

A process of the trace is a role, a thread one of its processes; times are in microseconds.
Source: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from rlhf_api.contract.timeline import StepTimeline

from ..folder.run_folder import RunFolder
from ..refusal import Query, Refusal, read_count
from .timeline import name_row, read_records

MOST_STEPS = 1000
_STEPS = 20
_MICROSECONDS = 1e6


def read_trace(run: RunFolder, query: Query) -> dict[str, Any]:
    """`/runs/{id}/trace?step=&count=`. Raises Refusal for steps without a record."""
    steps = run.metrics.steps
    last = read_count(query, "step", steps[-1] if steps else 0)
    count = read_count(query, "count", _STEPS, least=1, most=MOST_STEPS)
    records = read_records(run, last - count + 1, last)
    if not records:
        raise Refusal(404, f"the run has recorded no timeline of step {last} and those before it")
    return {"traceEvents": list(list_events(records)), "displayTimeUnit": "ms"}


def list_events(records: Sequence[StepTimeline]) -> Iterator[dict[str, Any]]:
    """A row of the steps, and one of each process."""
    places: dict[tuple[str, str], tuple[int, int]] = {}
    roles: list[str] = []
    for record in records:
        since = (record.time - records[0].time) * _MICROSECONDS
        rows = [("steps", "steps", f"step {record.step}", 0.0, record.seconds)]
        rows += [(span.role, name_row(span), span.what, span.begin, span.end) for span in record.spans]
        for role, who, what, begin, end in rows:
            if (role, who) not in places:
                if role not in roles:
                    roles.append(role)
                    yield _name("process_name", len(roles), 0, role)
                places[role, who] = roles.index(role) + 1, len(places) + 1
                yield _name("thread_name", *places[role, who], who)
            process, thread = places[role, who]
            yield {
                "ph": "X",
                "name": what,
                "cat": role,
                "pid": process,
                "tid": thread,
                "ts": round(since + begin * _MICROSECONDS, 1),
                "dur": round((end - begin) * _MICROSECONDS, 1),
                "args": {"step": record.step},
            }


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
