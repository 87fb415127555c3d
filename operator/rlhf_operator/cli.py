"""The command line: `rlhf validate`, `plan`, `render`, `schema`, `experiments`, `run`, `selftest`, `graph`, `data`, and
the verbs of a cluster."""

import argparse
import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import yaml

from rlhf_api.experiments import experiments
from rlhf_api.json_schema import manifest_schema
from rlhf_api.manifest import RLHFJob, composed, load, parse
from rlhf_api.model_files import model_sizes
from rlhf_api.problems import InvalidJob
from rlhf_api.run import RunConfig, command, replicas, roles_of
from rlhf_api.status import JobStatus
from rlhf_api.unread import without_effect

from . import plan_command
from .archive import open_store, replay
from .exit_reasons import missing_words
from .exits import FAILED, INTERRUPTED, Misuse, ended, say
from .graph import command as graph
from .local import data, gpus, workdir
from .local.host import Host
from .local.metrics_server import check_port
from .local.ports import place
from .local.preflight import check_files, named_files, of_a_cluster
from .local.processes import Command
from .local.progress import display
from .manifest_arguments import add_manifest, add_runtime, add_trial, parsed, with_runtime_of
from .plan_table import plan_lines
from .selftest import command as selftest
from .subcommands import add_command
from .verbs.arguments import VERBS, add_verbs

EXIT_CODES = {"Succeeded": 0, "Failed": FAILED, "Suspended": INTERRUPTED}


def main(arguments: Sequence[str] | None = None, make: Command = command) -> int:
    """Runs the command line; returns the exit code. `make` builds the processes' command lines."""
    options = parsed(_parser(), arguments)
    if options.command in VERBS:
        # The Kubernetes client loads slowly, and `rlhf run` does not need it.
        from .verbs.main import run

        return run(options)
    if options.command == "replay":
        return ended(lambda: open_store.run(options))
    if options.command == "graph":
        return ended(lambda: graph.run(options))
    if options.command == "plan":
        return ended(lambda: plan_command.run(options))
    if options.command == "selftest":
        return ended(lambda: selftest.run(options, make))
    if options.command == "data":
        return ended(lambda: data.run(options))
    if options.command == "render":
        return ended(lambda: _render(options))
    if options.command == "schema":
        say(json.dumps(manifest_schema(), indent=1), sys.stdout)
        return 0
    if options.command == "experiments":
        for name, file in experiments().items():
            say(f"{name:14}  {file or 'the algorithm as it is by default'}", sys.stdout)
        return 0
    if options.command == "run" and options.mode == "kubernetes":
        return ended(lambda: _submit(options))
    return ended(lambda: _validate_or_run(options, make))


def _render(options: argparse.Namespace) -> int:
    document = composed(options.file, options.set)
    parse(document)
    say(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110).rstrip("\n"), sys.stdout)
    return 0


def _submit(options: argparse.Namespace) -> int:
    """`rlhf run --mode kubernetes`: submits the manifest to the cluster of the current context."""
    for name in ("runtime", "workdir", "resume", "overwrite", "base_port", "metrics_port"):
        if getattr(options, name):
            raise Misuse(f"--{name.replace('_', '-')} applies only to --mode local; leave it out")
    sets = [part for override in options.set for part in ("--set", override)]
    trial = [] if options.trial is None else ["--trial", options.trial]
    return main(["submit", str(options.file), *sets, *trial])


def _validate_or_run(options: argparse.Namespace, make: Command) -> int:
    try:
        read = load(options.file, options.set, options.trial)
    except InvalidJob as error:
        if error.job is None or not options.files:
            raise
        raise InvalidJob([*error.problems, *named_files(error.job.spec, error.problems)]) from None
    job = with_runtime_of(read, options.runtime, needed=options.command == "run")
    if options.files and (problems := check_files(job.spec)):
        raise InvalidJob(problems)
    if options.command == "run":
        return _run(job, options, make)
    say(f"{options.file} is valid: {_summary(job)}", sys.stdout)
    for line in plan_lines(job.spec, model_sizes(job.spec) if options.files else {}):
        say(line, sys.stdout)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rlhf",
        description="Runs RLHF jobs, each declared as one RLHFJob manifest, on this machine or a cluster.",
    )
    parser.add_argument("--version", action="version", version=f"rlhf {version('rlhf-operator')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    validate = add_command(
        commands, "validate", help="check a manifest, its data and its paths without running it"
    )
    run = add_command(commands, "run", help="run a manifest on this machine")
    for each in (validate, run):
        add_manifest(each)
        each.set_defaults(files=True)
        add_runtime(each)
    render = add_command(
        commands, "render", help="print a manifest with its includes, variables and overrides applied"
    )
    add_manifest(render)
    add_command(commands, "schema", help="print the JSON schema of manifests, for editors")
    add_command(
        commands, "experiments", help="list the experiments, which may be named in place of a manifest"
    )
    validate.add_argument(
        "--no-files", dest="files", action="store_false", help="do not check data files, models and modules"
    )
    validate.set_defaults(trial=None)
    add_trial(run)
    run.add_argument(
        "--mode",
        choices=["local", "kubernetes"],
        default="local",
        help="run on this machine, or submit to the cluster of the current context, as `rlhf submit` does; "
        "default: local",
    )
    run.add_argument(
        "--workdir", type=Path, metavar="DIR", help="work directory of the run; default: runs/<name>"
    )
    earlier = run.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume", action="store_true", help="continue from the newest checkpoint in the work directory"
    )
    earlier.add_argument(
        "--overwrite", action="store_true", help="delete the earlier run in the work directory first"
    )
    run.add_argument(
        "--base-port",
        type=int,
        metavar="N",
        help="first of the ports of the processes, N, N+1 and so on; default: any free ones",
    )
    run.add_argument(
        "--metrics-port",
        type=int,
        metavar="N",
        help="port of the Prometheus metrics; default: any free one",
    )
    add_verbs(commands, parser.prog)
    replay.add_replay(commands)
    graph.add_graph(commands)
    data.add_data(commands)
    plan_command.add_plan(commands)
    selftest.add_selftest(commands)
    return parser


def _summary(job: RLHFJob) -> str:
    roles = ", ".join(f"{role.value} x {replicas(job.spec, role)}" for role in roles_of(job.spec))
    return f"{job.metadata.name}, {job.spec.algorithm}, {job.spec.steps} steps on {roles}"


def _run(job: RLHFJob, options: argparse.Namespace, make: Command) -> int:
    folder: Path = options.workdir or Path("runs", job.metadata.name)
    config = RunConfig(
        job=job.metadata.name,
        spec=job.spec,
        workdir=str(folder.resolve()),
        resume=options.resume or job.spec.checkpoint.resume,
    )
    gpus.check(job.spec, gpus.present({**os.environ, **job.spec.environment}))
    with workdir.locked(folder):
        places = place(config, options.base_port)
        check_port(options.metrics_port, places)
        before = workdir.prepare(folder, job.spec, resume=options.resume, overwrite=options.overwrite)
        if before is not None and before.phase == "Succeeded" and before.step >= job.spec.steps:
            say(f"{folder} already has all {job.spec.steps} steps; raise spec.steps to go on", sys.stdout)
            return 0
        shown = display(job.metadata.name, job.spec.steps)
        host = Host(config, shown, places, before=before, make=make, metrics_port=options.metrics_port)
        resumed = "resuming " if before is not None else ""
        shown.event(f"{resumed}{_summary(job)}; logs in {folder / workdir.LOGS}")
        if unheeded := of_a_cluster(job.spec):
            shown.event(f"no effect on this machine, only on a cluster: {', '.join(unheeded)}")
        for line in without_effect(job.spec):
            shown.event(line)
        try:
            status = asyncio.run(host.run())
        finally:
            shown.close()
    _conclude(status, host.outcome, folder)
    return EXIT_CODES[status.phase]


def _conclude(status: JobStatus, message: str, folder: Path) -> None:
    """Prints the outcome: where the results are, or what failed and how to continue."""
    step = status.last_checkpoint.step if status.last_checkpoint else None
    resume = f"go on with `rlhf run ... --workdir {shlex.quote(str(folder))} --resume`"
    if status.phase == "Failed":
        say(f"error: {message}", sys.stderr)
        if step is not None:
            say(f"the newest checkpoint is of step {step}; {resume}", sys.stderr)
    elif status.phase == "Suspended":
        say(f"{message}; {resume}", sys.stderr)
    else:
        say(f"done: {status.step} of {status.total_steps} steps", sys.stdout)
        for name in (workdir.POLICY, workdir.METRICS, workdir.CURVE):
            if (folder / name).exists():
                say(f"  {folder / name}", sys.stdout)
    if missing := missing_words(status.ledger):
        say(f"warning: {missing}; see {folder / workdir.LOGS / 'trainer-0.log'}", sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
