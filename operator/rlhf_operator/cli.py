"""The command line `rlhf`: each command is a module of its own, or one of the short ones here."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version

from rlhf_api.contract.run import command
from rlhf_api.host.strict_yaml import dumped
from rlhf_api.manifest.experiments import experiments
from rlhf_api.manifest.load import composed, parse
from rlhf_api.schema.json_schema import manifest_schema

from .archive import open_store, replay, samples
from .commands import compare, data, environment, init, sweep, ui
from .commands import plan as plan_command
from .commands import run as run_command
from .console.exits import ended, print_line
from .console.manifest_arguments import add_manifest, parsed
from .console.subcommands import GroupedParser, add_command
from .graph import command as graph
from .importing import command as importing
from .local.processes.process import Command
from .selftest import command as selftest
from .verbs import completion
from .verbs.arguments import VERBS, add_verbs

_GROUPS = {
    "write and run a job": ("init", "import", "validate", "plan", "run", "sweep", "selftest", "clone"),
    "look at jobs and runs": (
        "status",
        "list",
        "logs",
        "ui",
        "samples",
        "compare",
        "checkpoint",
        "replay",
        "data",
        "env",
        "graph",
    ),
    "control jobs on a cluster": ("submit", "suspend", "resume", "scale"),
}
"""Headings of the help, with their commands."""


def main(arguments: Sequence[str] | None = None, make: Command = command) -> int:
    """Runs the command line; returns the exit code. `make` builds the processes' command lines."""
    parser = _parser()
    if (line := completion.read_line(sys.argv[1:] if arguments is None else arguments)) is not None:
        return ended(lambda: completion.answer(parser, line))
    options = parsed(parser, arguments)
    if options.command is None:
        parser.error("give a COMMAND; to begin, `rlhf init`, or `rlhf --help` for all commands")
    if options.command in VERBS:
        # The Kubernetes client loads slowly, and `rlhf run` does not need it.
        from .kubectl import run

        return run(options)
    if options.command == "run" and options.mode == "kubernetes":
        return ended(lambda: main(run_command.as_submit(options)))
    if options.command == "sweep" and options.mode == "kubernetes":
        return ended(lambda: next(filter(None, map(main, sweep.as_submits(options))), 0))
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "init": init.run,
        "import": importing.run,
        "validate": run_command.validate,
        "run": partial(run_command.run, make=make),
        "render": _render,
        "schema": _schema,
        "experiments": _experiments,
        "plan": plan_command.run,
        "graph": graph.run,
        "data": data.run,
        "env": environment.run,
        "compare": compare.run,
        "ui": ui.run,
        "sweep": sweep.run,
        "completion": completion.run,
        "replay": open_store.run,
        "samples": open_store.run,
        "selftest": partial(selftest.run, make=make),
    }
    return ended(lambda: commands[options.command](options))


def _parser() -> argparse.ArgumentParser:
    parser = GroupedParser(
        prog="rlhf",
        description="Runs RLHF jobs, each declared as one RLHFJob manifest, on this machine or a cluster.",
        groups=_GROUPS,
    )
    parser.add_argument("--version", action="version", version=f"rlhf {version('rlhf-operator')}")
    commands = parser.commands
    init.add_init(commands)
    importing.add_import(commands)
    run_command.add_validate(commands)
    run_command.add_run(commands)
    render = add_command(
        commands, "render", help="print a manifest with its includes, variables and overrides applied"
    )
    add_manifest(render)
    add_command(commands, "schema", help="print the JSON schema of manifests, for editors")
    add_command(
        commands, "experiments", help="list the experiments, which may be named in place of a manifest"
    )
    add_verbs(commands, parser.prog)
    replay.add_replay(commands)
    samples.add_samples(commands)
    compare.add_compare(commands)
    ui.add_ui(commands)
    sweep.add_sweep(commands)
    graph.add_graph(commands)
    data.add_data(commands)
    environment.add_env(commands)
    plan_command.add_plan(commands)
    selftest.add_selftest(commands)
    completion.add_completion(commands)
    return parser


def _render(options: argparse.Namespace) -> int:
    document = composed(options.file, options.set, options.variables)
    parse(document)
    print_line(dumped(document), sys.stdout)
    return 0


def _schema(_options: argparse.Namespace) -> int:
    print_line(json.dumps(manifest_schema(), indent=1), sys.stdout)
    return 0


def _experiments(_options: argparse.Namespace) -> int:
    for name, file in experiments().items():
        print_line(f"{name:14}  {file or 'the algorithm as it is by default'}", sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
