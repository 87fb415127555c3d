"""`rlhf env try`: plays episodes of a manifest's environment with the job's own model, in the trainer's packages."""

import argparse
from pathlib import Path

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.host.job_files import provided
from rlhf_api.manifest.load import load

from ..console.manifest_arguments import add_manifest
from ..console.subcommands import Commands, add_command
from ..console.trainer_packages import run_module
from ..local.preflight.files import check_files

MODULE = "rlhf_trainer.commands.environment"


def add_env(commands: Commands) -> None:
    """Adds the command's parsers."""
    parser = add_command(commands, "env", help="play episodes of a manifest's environment")
    verbs = parser.add_subparsers(dest="what", required=True, metavar="try")
    trial = add_command(
        verbs,
        "try",
        help="play episodes with the job's own model, and print each turn, its reply and its reward",
    )
    add_manifest(trial)
    trial.add_argument(
        "--episodes",
        type=_count,
        default=4,
        metavar="N",
        help="number of episodes, one for each row of the data from --row on; default: 4",
    )
    trial.add_argument(
        "--row",
        type=int,
        default=0,
        metavar="N",
        help="number of the first row, counted from 0 over all files; default: 0",
    )
    trial.add_argument(
        "--tokens",
        action="store_true",
        help="print each token, and whether it was sampled, which is what training learns from",
    )
    trial.add_argument(
        "--vllm",
        action="store_true",
        help="sample by vLLM, as the job's generators do, which takes a minute to load; default: by transformers",
    )
    trial.add_argument(
        "--workdir",
        type=Path,
        metavar="DIR",
        help="work directory of a run that made its own tokenizer; default: runs/<name>",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    job = load(options.file, options.set, variables=options.variables)
    if job.spec.environment is None:
        raise InvalidJob(
            [Problem("spec.environment", "is required here and missing: name a class as its path")]
        )
    if options.vllm and job.spec.generator.shared_with_trainer:
        message = "this job has no vLLM: its trainer samples (spec.generator.sharedWithTrainer)"
        raise InvalidJob([Problem("--vllm", message)])
    if problems := check_files(job.spec):
        raise InvalidJob(problems)
    folder = options.workdir or Path("runs", job.metadata.name)
    config = RunConfig(job=job.metadata.name, spec=job.spec, workdir=str(folder.resolve()))
    wishes = ["--episodes", str(options.episodes), "--row", str(options.row)]
    flags = [f"--{name}" for name in ("tokens", "vllm") if getattr(options, name)]
    with provided(job.spec.workspace.files):
        return run_module(MODULE, config, *wishes, *flags).returncode


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 10,000; got {text!r}")
    return int(text)
