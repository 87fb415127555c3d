"""`rlhf data`: runs the trainer's packages to show how a job's rows are tokenized."""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

from rlhf_api.manifest import load
from rlhf_api.run import RunConfig

from ..exits import Failure
from ..manifest_arguments import add_manifest
from ..subcommands import Commands, add_command

MODULE = "rlhf_trainer.data_command"


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
    job = load(options.file, options.set)
    if importlib.util.find_spec(MODULE.partition(".")[0]) is None or not importlib.util.find_spec(
        "transformers"
    ):
        raise Failure(
            "this needs the trainer's packages, which are not installed: pip install 'rlhf-operator[trainer]'"
        )
    folder = options.workdir or Path("runs", job.metadata.name)
    config = RunConfig(job=job.metadata.name, spec=job.spec, workdir=str(folder.resolve()))
    row = ["--row", str(options.row)] if options.what == "show" else []
    command = [sys.executable, "-m", MODULE, options.what, *row]
    return subprocess.run(
        command, input=config.model_dump_json(by_alias=True), text=True, check=False
    ).returncode
