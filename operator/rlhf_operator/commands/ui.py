"""`rlhf ui`: serves the page over runs of this machine, or of stores, to this machine."""

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ..console.exits import Misuse, print_line
from ..console.subcommands import Commands, add_command
from ..page.folder.catalog import Catalog
from ..page.serve.beside import TOKEN_BYTES
from ..page.serve.export import export_page
from ..page.serve.server import address_of, listen, serving
from ..page.serve.static_files import MISSING, find_assets
from ..page.stored.stores import find_stored_runs

RUNS = Path("runs")
"""The folder of runs that are not named."""
_LAST_PORT = 65535


def add_ui(commands: Commands) -> None:
    parser = add_command(commands, "ui", help="serve a page over runs: curves, samples, alarms, comparisons")
    parser.add_argument(
        "places",
        nargs="*",
        metavar="RUNS",
        help="work directories, or folders that hold some, or URLs of checkpoint stores (s3://, gs://, az://, file://) "
        "or of what holds some; default: runs",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=0,
        metavar="N",
        help="port on the loopback interface; default: any free one",
    )
    parser.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="write the page with the data of the runs into a new folder, to open from there, and serve nothing",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command until Ctrl-C; returns the exit code."""
    if not 0 <= options.port <= _LAST_PORT:
        raise Misuse(f"--port must be a port, 1 to {_LAST_PORT}; got {options.port}")
    with tempfile.TemporaryDirectory(prefix="rlhf-ui-") as copies:
        return _show(options, _find_runs(options.places or [str(RUNS)], Path(copies)))


def _find_runs(places: Sequence[str], copies: Path) -> Catalog:
    """Raises InvalidJob and UnusableStore for places that cannot be read."""
    urls = [place for place in places if "://" in place]
    folders = [Path(place) for place in places if place not in urls]
    return Catalog(folders, find_stored_runs(urls, copies))


def _show(options: argparse.Namespace, catalog: Catalog) -> int:
    if options.export is not None:
        file, count = export_page(catalog, options.export)
        print_line(f"{_count(count)} in {file}", sys.stdout)
        return 0
    if not find_assets():
        print_line(f"{MISSING}; the API works without", sys.stderr)
    asyncio.run(_serve(catalog, options.port))
    return 0


async def _serve(catalog: Catalog, port: int) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
    token, listener = secrets.token_urlsafe(TOKEN_BYTES), listen(port)
    async with serving(catalog, token, listener):
        print_line(f"{_count(len(catalog.runs()))} on {address_of(listener, token)}", sys.stdout)
        await ended.wait()


def _count(runs: int) -> str:
    return "1 run" if runs == 1 else f"{runs} runs"
