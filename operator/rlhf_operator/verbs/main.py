"""Runs a verb: connects to the cluster, does it, says in one line what went wrong."""

import argparse
import asyncio
import io
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

from rlhf_api.manifest import load
from rlhf_api.problems import InvalidJob

from ..archive import checkpoints
from ..cluster.api import ApiError
from .arguments import add_verbs
from .checkpoint import checkpoint
from .failures import Failure, Misuse, explain
from .kubeconfig import locate
from .logs import logs
from .scale import scale
from .session import Session
from .status import status
from .submit import submit
from .suspend import resume, suspend

FAILED, USAGE, INTERRUPTED = 1, 2, 130

_VERBS: dict[str, Callable[[Session, argparse.Namespace], Awaitable[int]]] = {
    "status": status,
    "logs": logs,
    "checkpoint": checkpoint,
    "suspend": suspend,
    "resume": resume,
    "scale": scale,
    "submit": submit,
}


def kubectl_main(arguments: Sequence[str] | None = None) -> int:
    """`kubectl rlhf`: kubectl runs `kubectl-rlhf` with what follows."""
    program = "kubectl rlhf"
    parser = argparse.ArgumentParser(prog=program, description="RLHF runs on a cluster.")
    add_verbs(parser.add_subparsers(dest="command", required=True, metavar="COMMAND"), program)
    return run(parser.parse_args(arguments))


def run(options: argparse.Namespace) -> int:
    """Returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if checkpoints.meant(options):
        return checkpoints.run(options)
    try:
        return asyncio.run(_run(options))
    except InvalidJob as error:
        lines = [f"error: {problem}" for problem in error.problems]
        code = USAGE
    except Failure as error:
        lines = [f"error: {error}"]
        code = USAGE if isinstance(error, Misuse) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        return FAILED
    print("\n".join(lines), file=sys.stderr)
    return code


async def _run(options: argparse.Namespace) -> int:
    verb = _VERBS[options.command]
    if verb is status and options.watch and options.name is None:
        raise Misuse("--watch needs the NAME of a job; `kubectl get rlhfjobs --watch` follows them all")
    if verb is submit:
        options.job = load(options.file, options.set)
    target = await locate(options.kubeconfig, options.context, options.namespace)
    try:
        session = Session(target)
    except (OSError, ValueError) as error:
        raise Failure(f"{target.words}: its certificates cannot be used: {error}") from None
    async with session:
        try:
            return await verb(session, options)
        except ApiError as error:
            raise Failure(explain(error, target.words)) from None
