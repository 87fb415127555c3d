"""Runs a verb: connects to the cluster and executes it."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rlhf_api.manifest.load import load

from .archive import checkpoints
from .console.exits import Failure, Misuse, ended
from .console.included_files import read_included
from .console.manifest_arguments import parsed
from .console.subcommands import CommandParser
from .kube.api_error import ApiError
from .selftest.cluster_command import selftest
from .verbs.argument_types import of_this_machine
from .verbs.arguments import add_selftest, add_verbs
from .verbs.change import resume, scale, suspend
from .verbs.checkpoint import checkpoint
from .verbs.client import Session, explain
from .verbs.clone import clone, clone_file
from .verbs.completion import ASKING, answer, read_line
from .verbs.kubeconfig import locate
from .verbs.local_runs import list_runs, print_logs, show_status
from .verbs.logs import logs
from .verbs.status import status
from .verbs.submit import submit

T = TypeVar("T")

_VERBS: dict[str, Callable[[Session, argparse.Namespace], Awaitable[int]]] = {
    "status": status,
    "list": status,
    "logs": logs,
    "checkpoint": checkpoint,
    "suspend": suspend,
    "resume": resume,
    "scale": scale,
    "submit": submit,
    "clone": clone,
    "selftest": selftest,
}


_LOCAL: dict[str, Callable[[argparse.Namespace], int]] = {
    "status": show_status,
    "list": list_runs,
    "logs": print_logs,
}
"""Verbs that also take runs of this machine."""


def kubectl_main(arguments: Sequence[str] | None = None) -> int:
    """`kubectl rlhf`: kubectl runs `kubectl-rlhf` with what follows."""
    given, parser = sys.argv[1:] if arguments is None else arguments, _parser()
    if (line := read_line(given)) is not None:
        return ended(lambda: answer(parser, line))
    return run(parsed(parser, given))


def complete_main(arguments: Sequence[str] | None = None) -> int:
    """Completion of `kubectl rlhf`: kubectl runs `kubectl_complete-rlhf` with the words that follow."""
    return kubectl_main([*ASKING, *(sys.argv[1:] if arguments is None else arguments)])


def _parser() -> argparse.ArgumentParser:
    program = "kubectl rlhf"
    parser: argparse.ArgumentParser = CommandParser(
        prog=program, description="Shows and controls RLHF jobs on a cluster."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_verbs(commands, program)
    add_selftest(commands, program)
    return parser


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns the exit code."""
    if checkpoints.meant(options):
        return ended(lambda: checkpoints.run(options))
    if options.command == "clone" and isinstance(options.run, Path):
        return ended(lambda: clone_file(options))
    if isinstance(getattr(options, "name", None), Path) or getattr(options, "runs", None) is not None:
        return ended(lambda: _LOCAL[options.command](options))
    return ended(lambda: asyncio.run(_run(options)))


async def _run(options: argparse.Namespace) -> int:
    verb = _VERBS[options.command]
    if verb is status and options.watch and options.name is None:
        raise Misuse("--watch needs the NAME of a job; `kubectl get rlhfjobs --watch` follows them all")
    if verb is submit:
        included = read_included(options.include)
        options.job = load(
            options.file, options.set, options.trial, variables=options.variables, included=included
        )
    if verb is selftest:
        options.job = load(options.file, options.set, variables=options.variables)
    try:
        return await on_cluster(
            lambda session: verb(session, options), options.namespace, options.context, options.kubeconfig
        )
    except NoCluster as error:
        here = of_this_machine(Path("runs", options.name)) if getattr(options, "name", None) else ""
        raise Failure(f"{error}; {here}") if here else error from None


class NoCluster(Failure):
    """No cluster could be located."""


async def on_cluster(
    act: Callable[[Session], Awaitable[T]],
    namespace: str | None = None,
    context: str | None = None,
    kubeconfig: str | None = None,
) -> T:
    """The result of `act` on a cluster; what is None is as in the user's kubeconfig. Raises Failure where the cluster
    cannot be reached or refuses a call."""
    try:
        target = await locate(kubeconfig, context, namespace)
    except Failure as error:
        raise NoCluster(str(error)) from None
    try:
        session = Session(target)
    except (OSError, ValueError) as error:
        raise Failure(f"{target.cluster}: its certificates cannot be used: {error}") from None
    async with session:
        try:
            return await act(session)
        except ApiError as error:
            raise Failure(explain(error, target.cluster)) from None
