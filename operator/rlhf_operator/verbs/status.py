"""`rlhf status`."""

import argparse
import datetime
import json
import sys

from rich.text import Text

from ..console.exits import Misuse
from ..console.text import columns, one_line
from ..job.snapshot import Job
from ..kube.api import Body
from ..kube.api_error import ApiError
from .client import Session, passing
from .format import change
from .jobs import check_served, find, is_finished, poll_job, status_of
from .status_view import page
from .terminal import LiveView, put


async def status(session: Session, options: argparse.Namespace) -> int:
    if options.all_namespaces and (options.name or options.watch):
        raise Misuse("--all-namespaces lists jobs: leave out NAME and --watch")
    if options.name is None:
        return await _all(session, options)
    body = await find(session, options.name)
    if options.output == "json":
        put(json.dumps(body, indent=2), sys.stdout)
        return 0
    if not options.watch:
        put(await _page(session, body), sys.stdout)
        return 0
    with LiveView(sys.stdout) as shown:
        async for observed in poll_job(session, options.name, shown.print_line):
            now = status_of(observed)
            shown.show(await _page(session, observed) if sys.stdout.isatty() else Text(), change(now))
            if now is not None and is_finished(now):
                return 0 if now.phase == "Succeeded" else 1
    raise AssertionError  # `poll_job` is endless


async def _page(session: Session, body: Body) -> Text:
    try:
        events = await session.events(body["metadata"]["uid"])
    except ApiError as error:
        if error.status != 403 and not passing(error):
            raise
        events = []  # a user who may read jobs may lack the right to read events; the rest is shown
    return page(Job.of(body), status_of(body), events, datetime.datetime.now(datetime.UTC))


async def _all(session: Session, options: argparse.Namespace) -> int:
    where = None if options.all_namespaces else session.namespace
    try:
        if options.output == "json":
            items = [body async for body in session.list("RLHFJob", where)]
            put(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2), sys.stdout)
            return 0
        definitions, rows = await session.job_table(everywhere=where is None)
    except ApiError as error:
        if error.status == 404:
            await check_served(session)
        raise
    if rows:
        put("\n".join(table(definitions, rows, namespaces=where is None)), sys.stdout)
    else:
        put(f"There are no jobs in {f'namespace {where}' if where else 'any namespace'}.", sys.stderr)
    return 0


def table(definitions: list[Body], rows: list[Body], *, namespaces: bool = False) -> list[str]:
    """The columns of `kubectl get rlhfjobs`, as lines; with `namespaces`, each row's namespace first."""
    shown = [i for i, column in enumerate(definitions) if not column.get("priority")]
    head = [definitions[i]["name"].upper() for i in shown]
    cells = [
        ["" if row["cells"][i] is None else one_line(str(row["cells"][i])) for i in shown] for row in rows
    ]
    if namespaces:
        head, cells = (
            ["NAMESPACE", *head],
            [[row["object"]["metadata"]["namespace"], *line] for row, line in zip(rows, cells, strict=True)],
        )
    return columns([head, *cells])
