"""`rlhf selftest`: one short run of a job's own models and settings on this machine, and a table of the checks."""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import load

from ..console.exits import FAILED, INTERRUPTED, Failure, Misuse, print_line
from ..console.manifest_arguments import add_manifest, add_runtime, with_runtime_of
from ..console.subcommands import Commands, add_command
from ..local.display.progress import Lines
from ..local.preflight.files import check_files
from ..local.processes.process import Command
from ..local.records import workdir
from ..local.resources.placement import find_placement
from .checks import judged
from .derived import Overrides, as_arguments, first_half
from .on_host import OnHost
from .table import passed
from .trial import Interrupted, carry_out

_BULKY = ("checkpoints", workdir.POLICY, f"{workdir.POLICY}-adapter", "critic", "critic-adapter", "initial")
"""Files not kept of a failed run's temporary folder."""


def add_selftest(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "selftest",
        help="check within minutes, on this machine, that a job's models agree, learn and survive kills",
    )
    add_manifest(parser)
    add_runtime(parser)
    parser.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="empty directory for the selftest's run, which is kept; default: a temporary one",
    )


def run(options: argparse.Namespace, make: Command) -> int:
    """Runs the command; exit code 0 if every applicable check has passed."""

    def derive(overrides: Overrides) -> RLHFJob:
        job = load(options.file, [*options.set, *as_arguments(overrides)], variables=options.variables)
        return with_runtime_of(job, options.runtime, options.variables, needed=True)

    spec = derive({}).spec
    small = derive(first_half(spec)).spec
    if problems := check_files(spec):
        raise InvalidJob(problems)
    placed = find_placement(spec, os.environ, model_sizes(spec))
    with _folder(options.workdir) as (folder, keep), workdir.locked(folder):
        if (folder / workdir.CONFIG).exists():
            raise Misuse(f"--workdir {folder}: a run is in it; give an empty or a new folder")
        try:
            observations = asyncio.run(
                carry_out(spec, OnHost(derive, folder, placed, Lines(sys.stdout, 0), make))
            )
        except Interrupted:
            print_line("interrupted", sys.stderr)
            return INTERRUPTED
        except RuntimeError as error:  # of the store: an unreadable snapshot
            raise Failure(str(error)) from error
        checks = judged(spec, observations, small.data.prompts_per_step, small.sampling.responses_per_prompt)
        if passed(checks, observations.cause):
            return 0
        for name in _BULKY if options.workdir is None else ():
            shutil.rmtree(folder / name, ignore_errors=True)
        print_line(f"logs and figures of the run: {folder}", sys.stderr)
        keep()
        return FAILED


@contextmanager
def _folder(given: Path | None) -> Iterator[tuple[Path, Callable[[], object]]]:
    """The work directory, and a function that keeps it: a temporary one is removed afterwards otherwise."""
    with ExitStack() as removed:
        if given is None:
            temporary = Path(tempfile.mkdtemp(prefix="rlhf-selftest-"))
            removed.callback(shutil.rmtree, temporary)
        yield given or temporary, removed.pop_all
