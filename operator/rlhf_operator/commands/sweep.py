"""`rlhf sweep`: runs a manifest with each of several values, or with random ones, and compares what came of it."""

import argparse
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.manifest.load import composed, load

from ..archive.open_store import sibling_store
from ..console.exits import FAILED, INTERRUPTED, Misuse, print_line
from ..console.included_files import add_include
from ..console.manifest_arguments import add_file, add_runtime, add_set
from ..console.subcommands import Commands, add_command
from ..local.records import workdir
from ..local.run_process import handle_signals
from ..verbs.argument_types import count, replicas
from ..verbs.arguments import cluster_options
from . import compare
from .run import load_checked_job, manifest_arguments
from .sweep_values import FORMS, draw, grid, parse_values, trial_name
from .trials import Trial, Trials, divide_gpus, unfinished_trials

_LONGEST_NAME = 40


def add_sweep(commands: Commands) -> None:
    parser = add_command(
        commands,
        "sweep",
        help="run a manifest with each of several values, and compare the runs",
        parents=[cluster_options()],
    )
    add_file(parser)
    parser.add_argument(
        "values",
        nargs="*",
        action="extend",
        default=[],
        metavar="path=[value,value]",
        help=f"the values of a field: {FORMS}; all combinations are tried",
    )
    add_set(parser)
    add_runtime(parser)
    add_include(parser)
    parser.add_argument(
        "--random", type=replicas, metavar="N", help="try N random combinations rather than all"
    )
    parser.add_argument("--seed", type=count, metavar="S", help="of the random ones; default: 0")
    parser.add_argument(
        "--max-parallel",
        type=replicas,
        default=1,
        metavar="N",
        help="trials that run at once, the GPUs divided between them; default: 1",
    )
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="folder of the trials' work directories; default: runs"
    )
    parser.add_argument(
        "--mode",
        choices=["local", "kubernetes"],
        default="local",
        help="run the trials on this machine, or submit them to a cluster, as `rlhf submit` does; default: local",
    )


def as_submits(options: argparse.Namespace) -> list[list[str]]:
    """`rlhf sweep --mode kubernetes` as arguments of `rlhf submit`, for each trial. Raises InvalidJob with what is
    wrong in any of them, and Misuse for options of runs of this machine."""
    if options.runs is not None or options.runtime is not None or options.max_parallel > 1:
        raise Misuse("--runs, --runtime and --max-parallel apply only to --mode local; leave them out")
    where = [
        part
        for name in ("namespace", "context", "kubeconfig")
        if (value := getattr(options, name)) is not None
        for part in (f"--{name}", value)
    ]
    where += ["--include", *options.include] if options.include else []
    return [["submit", *_arguments(options, trial), *where] for trial in _trials(options)]


def run(options: argparse.Namespace) -> int:
    """Runs the trials on this machine; returns the exit code."""
    if any(getattr(options, name) is not None for name in ("namespace", "context", "kubeconfig")):
        raise Misuse("--namespace, --context and --kubeconfig apply only to --mode kubernetes")
    if options.include:
        raise Misuse("--include applies only to --mode kubernetes: a run of this machine finds its files")
    folder: Path = options.runs or Path("runs")
    trials, slots = _trials(options), divide_gpus(options.max_parallel)
    waiting = unfinished_trials(folder, trials, slots[0])
    names = [trial.job.metadata.name for trial in trials]
    finished = f", {len(trials) - len(waiting)} of them ended earlier" if len(waiting) < len(trials) else ""
    print_line(f"{len(trials)} trials{finished}, in {folder / names[0]} and so on", sys.stdout)
    runtime = [] if options.runtime is None else ["--runtime", str(options.runtime)]
    started = Trials(folder, waiting, slots, lambda trial: [*_arguments(options, trial), *runtime])
    with handle_signals(started.stop, signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as received:
        started.run()
    begun = [folder / name for name in names if (folder / name / workdir.CONFIG).is_file()]
    if begun:
        print_line("\n" + compare.table([compare.Run.read(each) for each in begun]), sys.stdout)
    if received:
        print_line("stopped on request; go on with the same command", sys.stderr)
        return INTERRUPTED
    return FAILED if started.failed else 0


def _trials(options: argparse.Namespace) -> list[Trial]:
    """All trials. Raises InvalidJob with what is wrong in any of them, each problem once."""
    if options.seed is not None and options.random is None:
        raise Misuse("--seed applies only to --random; leave it out")
    values = parse_values(options.values, ranges=options.random is not None)
    combinations = grid(values) if options.random is None else draw(values, options.random, options.seed or 0)
    trials: list[Trial] = []
    problems: dict[str, Problem] = {}
    for combination in combinations:
        overrides = [*options.set, *combination]
        try:
            document = composed(options.file, overrides, options.variables)
            name = _text(document, "metadata", "name")
            trial = trial_name(combination, _LONGEST_NAME - len(name) - 1)
            if store := _text(document, "spec", "checkpoint", "store"):
                combination = (*combination, f"checkpoint.store={sibling_store(store, f'{name}-{trial}')}")
                overrides = [*options.set, *combination]
            if options.mode == "local":
                job = load_checked_job(
                    options.file, overrides, trial, runtime=options.runtime, variables=options.variables
                )
            else:
                job = load(options.file, overrides, trial, variables=options.variables)
            trials.append(Trial(trial, job, combination))
        except InvalidJob as error:
            problems |= {str(problem): problem for problem in error.problems}
    if problems:
        raise InvalidJob(list(problems.values()))
    return trials


def _text(document: Any, *keys: str) -> str:
    """A text in a document that nothing has checked; empty if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, Mapping) else None
    return document if isinstance(document, str) else ""


def _arguments(options: argparse.Namespace, trial: Trial) -> list[str]:
    return manifest_arguments(options.file, [*options.set, *trial.overrides], trial.name, options.variables)
