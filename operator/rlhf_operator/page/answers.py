"""The read-only API: each path with the function that answers it, from what runs have left; no HTTP here."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from .catalog import Catalog
from .figures import list_figures, read_values
from .refusal import Query, Refusal
from .run_folder import RunFolder

Answer = dict[str, Any]
VERSION = "/api/v1"


class Request(NamedTuple):
    """A run, the rest of the path, and the query."""

    run: RunFolder
    rest: str
    query: Query


def _metrics(catalog: Catalog, request: Request) -> Answer:
    catalog.load_metrics(request.run)
    request.run.evaluations.refresh()
    if "names" in request.query:
        return read_values(request.run, request.query)
    return list_figures(request.run)


_OF_A_RUN: dict[str, Callable[[Catalog, Request], Answer]] = {
    "": lambda _catalog, request: request.run.summary(),
    "metrics": _metrics,
}
_PATH = re.compile(
    r"/runs/(?P<id>[0-9a-f]{16})(?:/(?P<part>[a-z]+)(?:/(?P<rest>[\w.-]{1,64}(?:/[a-z]+)?))?)?"
)


def answer(catalog: Catalog, path: str, query: Query) -> Answer:
    """The answer to GET of a path below VERSION. Raises Refusal."""
    if path == "/runs":
        runs = [run.summary() for run in catalog.runs()]
        return {"runs": sorted(runs, key=lambda run: run["started"] or "", reverse=True)}
    match = _PATH.fullmatch(path)
    part = _OF_A_RUN.get(match["part"] or "") if match else None
    if match is None or part is None:
        raise Refusal(404, "no such path; docs/reference/page-api.md has all")
    run = catalog.run(match["id"])
    if run is None:
        raise Refusal(404, "no such run; it may have been moved or deleted")
    return part(catalog, Request(run, match["rest"] or "", query))
