"""`rlhf data`, and what `rlhf validate` checks with the trainer's packages: rows as they are tokenized for training."""

import argparse
import json
import subprocess
from pathlib import Path

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.job_files import provided
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import load

from ..console.exits import Failure
from ..console.manifest_arguments import add_manifest
from ..console.subcommands import Commands, add_command
from ..console.trainer_packages import has_packages, run_module
from ..supervision.exit_reasons import most_informative_line

MODULE = "rlhf_trainer.commands.data"


def add_data(commands: Commands) -> None:
    """Adds the command's parsers."""
    parser = add_command(
        commands, "data", help="check how a manifest's data becomes tokens, or show one row of it"
    )
    verbs = parser.add_subparsers(dest="what", required=True, metavar="check|show")
    check = add_command(
        verbs,
        "check",
        help="report all invalid rows, the lengths of the others in tokens, and how many are cut",
    )
    show = add_command(verbs, "show", help="show a row as tokens, and which of them are trained on")
    for each in (check, show):
        add_manifest(each)
        each.add_argument(
            "--workdir",
            type=Path,
            metavar="DIR",
            help="work directory of a run that made its own tokenizer; default: runs/<name>",
        )
    show.add_argument(
        "--row",
        type=int,
        default=0,
        metavar="N",
        help="number of the row, counted from 0 over all files; default: 0",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    job = load(options.file, options.set, variables=options.variables)
    folder = options.workdir or Path("runs", job.metadata.name)
    row = ["--row", str(options.row)] if options.what == "show" else []
    return _run_in_trainer(job, folder, options.what, *row).returncode


def check_rows(job: RLHFJob) -> list[str]:
    """Checks the rows of local files as tokenized, and local models whose sizes may not fit them, as the trainer does
    at its start; returns warnings. Raises InvalidJob with the problems. Checks nothing without the trainer's packages,
    or if the tokenizer is not here."""
    name = job.spec.model.tokenizer or job.spec.model.policy
    if name is None or not Path(name).is_dir() or not has_packages():
        return []
    done = _run_in_trainer(job, Path("runs", job.metadata.name), "validate", streams=subprocess.PIPE)
    if done.returncode:
        raise Failure(f"the trainer's packages cannot read the rows: {most_informative_line(done.stderr)}")
    problems, warnings = json.loads(done.stdout.splitlines()[-1])
    if problems:
        raise InvalidJob([Problem(*problem) for problem in problems])
    return list(warnings)


def _run_in_trainer(
    job: RLHFJob, folder: Path, *arguments: str, streams: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the trainer's module on a job with its work directory; `streams`: where stdout and stderr go."""
    config = RunConfig(job=job.metadata.name, spec=job.spec, workdir=str(folder.resolve()))
    with provided(job.spec.workspace.files):
        return run_module(MODULE, config, *arguments, streams=streams)
