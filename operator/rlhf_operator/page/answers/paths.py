"""The read-only API: each path with the function that answers it, from what runs have left; no HTTP here."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..alarms.alarm_list import list_alarms
from ..folder.run_folder import RunFolder
from ..folder.sample_list import count_scores, list_samples, recall
from ..refusal import Query, Refusal
from .checkpoints import list_tokens
from .clones import list_clones
from .details import describe_run
from .differences import list_differences
from .episodes import answer_episodes
from .evaluations import list_evaluations
from .figures import list_figures, read_values
from .logs import list_logs, read_log
from .marks import list_marks
from .timeline import read_timeline
from .trace import read_trace

Answer = dict[str, Any]
VERSION = "/api/v1"


class Runs(Protocol):
    """The runs that a request may be about, such as a Catalog."""

    def runs(self) -> Sequence[RunFolder]: ...

    def run(self, id: str) -> RunFolder | None: ...

    def load(self, run: RunFolder) -> None:
        """Reads the run's figures up to now."""


class Request(NamedTuple):
    """The runs, one of them, the rest of the path, and the query."""

    runs: Runs
    run: RunFolder
    rest: str
    query: Query


def _metrics(request: Request) -> Answer:
    if "names" in request.query:
        return read_values(request.run, request.query)
    return list_figures(request.run)


def _samples(request: Request) -> Answer:
    if not request.rest:
        return recall(request.run.samples.refresh(), list_samples, request.query)
    id, _, part = request.rest.partition("/")
    if part != "tokens":
        raise Refusal(404, "no such path of a sample; it has /tokens")
    return list_tokens(request.run, id)


def _logs(request: Request) -> Answer:
    if not request.rest:
        return list_logs(request.run, request.query)
    return read_log(request.run, request.rest, request.query)


_OF_A_RUN: dict[str, Callable[[Request], Answer]] = {
    "": lambda request: describe_run(request.run),
    "alarms": lambda request: list_alarms(request.run),
    "episodes": lambda request: answer_episodes(request.run, request.rest, request.query),
    "evaluations": lambda request: list_evaluations(request.run),
    "clones": lambda request: list_clones(request.runs.runs(), request.run),
    "logs": _logs,
    "marks": lambda request: list_marks(request.run),
    "metrics": _metrics,
    "samples": _samples,
    "scores": lambda request: recall(request.run.samples.refresh(), count_scores, request.query),
    "timeline": lambda request: read_timeline(request.run, request.query),
    "trace": lambda request: read_trace(request.run, request.query),
}
_PATH = re.compile(
    r"/runs/(?P<id>[0-9a-f]{16})(?:/(?P<part>[a-z]+)(?:/(?P<rest>[\w.-]{1,64}(?:/[a-z]+)?))?)?"
)


def answer(catalog: Runs, path: str, query: Query) -> Answer:
    """The answer to GET of a path below VERSION. Raises Refusal."""
    if path == "/runs":
        runs = [run.summary() for run in catalog.runs()]
        return {"runs": sorted(runs, key=lambda run: run["started"] or "", reverse=True)}
    if path == "/compare":
        return list_differences(*(_find(catalog, query.get(name, "")) for name in ("a", "b")))
    match = _PATH.fullmatch(path)
    part = _OF_A_RUN.get(match["part"] or "") if match else None
    if match is None or part is None:
        raise Refusal(404, "no such path; docs/reference/page-api.md has all")
    run = _find(catalog, match["id"])
    catalog.load(run)
    return part(Request(catalog, run, match["rest"] or "", query))


def _find(catalog: Runs, id: str) -> RunFolder:
    run = catalog.run(id)
    if run is None:
        raise Refusal(404, "no such run; it may have been moved or deleted")
    return run
