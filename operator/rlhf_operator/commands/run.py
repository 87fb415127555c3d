"""`rlhf validate` and `rlhf run`: checks a manifest, and runs it on this machine."""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rlhf_api.contract.run import RunConfig, on_one_machine, replicas, roles_of
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.sizes import NOTHING
from rlhf_api.host.redaction import redacted
from rlhf_api.host.variables import ENVIRONMENT, NO_ENVIRONMENT
from rlhf_api.job import RLHFJob
from rlhf_api.manifest.load import load
from rlhf_api.rules.idle import list_idle_fields
from rlhf_api.spec import Spec

from ..console.exits import FAILED, INTERRUPTED, Misuse, print_line
from ..console.manifest_arguments import add_manifest, add_runtime, add_trial, with_runtime_of
from ..console.subcommands import Commands, add_command
from ..local.display.predicted import before_line
from ..local.display.progress import display
from ..local.host import Host
from ..local.metrics_server import check_port
from ..local.preflight.bytecode import uncompiled
from ..local.preflight.files import check_files, named_files, of_a_cluster, plain_secrets
from ..local.preflight.hub import check_hub
from ..local.preflight.models import critic_from_policy
from ..local.processes.process import Command
from ..local.records import provenance, workdir
from ..local.records.prediction import predict, write_prediction
from ..local.resources.placement import find_placement, foresee
from ..local.resources.ports import place
from ..page.serve.beside import page_beside
from .conclusion import print_conclusion
from .data import check_rows
from .plan_table import plan_lines

EXIT_CODES = {"Succeeded": 0, "Failed": FAILED, "Suspended": INTERRUPTED}
_LOCAL = ("runtime", "workdir", "resume", "overwrite", "accept_changes", "base_port", "metrics_port", "no_ui")
"""Options of a run on this machine alone."""


def add_validate(commands: Commands) -> None:
    parser = add_command(
        commands, "validate", help="check a manifest, its data and its paths without running it"
    )
    add_manifest(parser)
    add_runtime(parser)
    parser.add_argument(
        "--no-files", dest="files", action="store_false", help="do not check data files, models and modules"
    )


def add_run(commands: Commands) -> None:
    parser = add_command(commands, "run", help="run a manifest on this machine")
    add_manifest(parser)
    add_runtime(parser)
    add_trial(parser)
    parser.add_argument(
        "--mode",
        choices=["local", "kubernetes"],
        default="local",
        help="run on this machine, or submit to the cluster of the current context, as `rlhf submit` does; "
        "default: local",
    )
    parser.add_argument(
        "--workdir", type=Path, metavar="DIR", help="work directory of the run; default: runs/<name>"
    )
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume", action="store_true", help="continue from the newest checkpoint in the work directory"
    )
    earlier.add_argument(
        "--overwrite", action="store_true", help="delete the earlier run in the work directory first"
    )
    parser.add_argument(
        "--accept-changes",
        action="store_true",
        help="let a resumed run go on with other data or rewards than it had",
    )
    parser.add_argument(
        "--base-port",
        type=int,
        metavar="N",
        help="first of the ports of the processes, N, N+1 and so on; default: any free ones",
    )
    parser.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="port of the Prometheus metrics; default: any free one",
    )
    parser.add_argument(
        "--no-ui", action="store_true", help="do not serve the page of `rlhf ui` beside a run in a terminal"
    )


def validate(options: argparse.Namespace) -> int:
    loaded = _loaded(options.file, options.set, None, options.variables, files=options.files)
    job = with_runtime_of(loaded, options.runtime, options.variables, needed=False)
    warnings: list[str | None] = []
    if options.files:
        _check_files(job)
        warnings = [*check_rows(job), critic_from_policy(job.spec)]
    print_line(f"{options.file} is valid: {_summary(job.metadata.name, job.spec)}", sys.stdout)
    for line in filter(None, (*warnings, *plain_secrets(job.spec))):
        print_line(line, sys.stdout)
    sizes = model_sizes(job.spec) if options.files else NOTHING
    for line in (*plan_lines(job.spec, sizes), *foresee(job.spec, os.environ, sizes)):
        print_line(line, sys.stdout)
    return 0


def run(options: argparse.Namespace, make: Command) -> int:
    """Runs the job on this machine; `make` builds the processes' command lines."""
    job = load_checked_job(
        options.file, options.set, options.trial, runtime=options.runtime, variables=options.variables
    )
    if options.accept_changes and not options.resume:
        raise Misuse("--accept-changes applies only to --resume; leave it out")
    folder: Path = options.workdir or Path("runs", job.metadata.name)
    file_sizes = model_sizes(job.spec)
    placed = find_placement(job.spec, os.environ, file_sizes)
    config = RunConfig(
        job=job.metadata.name,
        spec=on_one_machine(job.spec),
        workdir=str(folder.resolve()),
        resume=options.resume or job.spec.checkpoint.resume,
        shared_gpus=placed.shared_gpus,
        shared_gpu_count=placed.shared_gpu_count,
    )
    with workdir.locked(folder), ExitStack() as beside:
        places = place(config, options.base_port)
        check_port(options.metrics_port, places)
        predicted = None if options.resume else predict(folder, job.spec, file_sizes)
        earlier = workdir.prepare(
            folder,
            config,
            resume=options.resume,
            overwrite=options.overwrite,
            accept_changes=options.accept_changes,
        )
        before = earlier.status if earlier else None
        if before is not None and before.phase == "Succeeded" and before.step >= job.spec.steps:
            print_line(
                f"{folder} already has all {job.spec.steps} steps; raise spec.steps to go on", sys.stdout
            )
            return 0
        check_hub(job.spec, {**os.environ, **job.spec.env})
        provenance.record_start(folder, job.spec)
        if predicted is not None:
            write_prediction(folder, predicted)
        if sys.stdout.isatty() and not options.no_ui:
            runs = folder if options.workdir else folder.parent
            beside.enter_context(page_beside(runs, partial(print_line, out=sys.stdout)))
        shown = display(job.metadata.name, job.spec.steps)
        host = Host(config, shown, places, before=before, make=make, metrics_port=options.metrics_port)
        resumed = "resuming " if before is not None else ""
        shown.event(f"{resumed}{_summary(job.metadata.name, config.spec)}")
        shown.event(f"logs in {folder / workdir.LOGS}")  # alone: a panel cuts long lines
        for words in placed.lines:
            shown.event(words)
        if predicted is not None and (seconds := before_line(predicted, job.spec.steps)):
            shown.event(seconds)
        for change in earlier.changes if earlier else ():
            shown.event(f"changed since the last start: {change}")
        if unheeded := of_a_cluster(job.spec):
            shown.event(f"no effect on this machine, only on a cluster: {', '.join(unheeded)}")
        if job.spec.sandbox is not None:
            shown.event(
                "in place of spec.sandbox, episodes have folders of this machine, kept apart by bubblewrap"
            )
        idle, secrets = list_idle_fields(job.spec), plain_secrets(job.spec)
        for line in (
            critic_from_policy(job.spec),
            *idle,
            *secrets,
            uncompiled({**os.environ, **job.spec.env}),
        ):
            if line is not None:
                shown.event(line)
        try:
            status = asyncio.run(host.run())
        finally:
            shown.close()
    print_conclusion(status, host.outcome, folder, job.spec.checkpoint.store, resume_command(options, folder))
    return EXIT_CODES[status.phase]


def as_submit(options: argparse.Namespace) -> list[str]:
    """`rlhf run --mode kubernetes` as arguments of `rlhf submit`. Raises Misuse for options of a local run."""
    for name in _LOCAL:
        if getattr(options, name):
            raise Misuse(f"--{name.replace('_', '-')} applies only to --mode local; leave it out")
    return ["submit", *_manifest_of(options)]


def resume_command(options: argparse.Namespace, folder: Path) -> str:
    """The command line that continues a run of these options in its work directory; `***` in place of secrets."""
    names = ("runtime", "base_port", "metrics_port")
    given = [(f"--{name.replace('_', '-')}", getattr(options, name)) for name in names]
    more = [part for flag, value in given if value is not None for part in (flag, str(value))]
    arguments = (*_manifest_of(options), *more, "--workdir", str(folder), "--resume")
    return shlex.join(["rlhf", "run", *map(redacted, arguments)])


def _manifest_of(options: argparse.Namespace) -> list[str]:
    return manifest_arguments(options.file, options.set, options.trial, options.variables)


def manifest_arguments(
    file: Path,
    overrides: Sequence[str],
    trial: str | None = None,
    variables: Mapping[str, str] = ENVIRONMENT,
) -> list[str]:
    """The arguments that say which manifest is meant, with its overrides."""
    sets = [part for override in overrides for part in ("--set", override)]
    named = [] if trial is None else ["--trial", trial]
    no_env = ["--no-env"] if variables is NO_ENVIRONMENT else []
    return [str(file), *sets, *named, *no_env]


def load_checked_job(
    file: Path,
    overrides: Sequence[str],
    trial: str | None = None,
    *,
    runtime: Path | None = None,
    variables: Mapping[str, str] = ENVIRONMENT,
) -> RLHFJob:
    """The job of a run on this machine. Raises InvalidJob with all problems of its manifest and files."""
    job = with_runtime_of(_loaded(file, overrides, trial, variables), runtime, variables, needed=True)
    _check_files(job)
    return job


def _loaded(
    file: Path,
    overrides: Sequence[str],
    trial: str | None,
    variables: Mapping[str, str],
    *,
    files: bool = True,
) -> RLHFJob:
    """The manifest's job. Raises InvalidJob; with `files`, also for missing files of a job that can be read in part."""
    try:
        return load(file, overrides, trial, variables=variables)
    except InvalidJob as error:
        if error.job is None or not files:
            raise
        raise InvalidJob([*error.problems, *named_files(error.job.spec, error.problems)]) from None


def _check_files(job: RLHFJob) -> None:
    if problems := check_files(job.spec):
        raise InvalidJob(problems)


def _summary(job: str, spec: Spec) -> str:
    roles = ", ".join(f"{role.value} x {replicas(spec, role)}" for role in roles_of(spec))
    return f"{job}, {spec.algorithm}, {spec.steps} steps on {roles}"
