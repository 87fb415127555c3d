"""`rlhf plan`: predicts batches, memory and seconds of a job before it runs, and compares the prediction with a run."""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.estimate.duration import Batch, Machine, Work, of_step, predicted
from rlhf_api.estimate.model_files import model_sizes
from rlhf_api.estimate.trainer_memory import largest_row
from rlhf_api.manifest.load import load
from rlhf_api.roles import Role
from rlhf_api.spec import Spec

from ..console.exits import print_line
from ..console.manifest_arguments import add_manifest
from ..console.subcommands import Commands, add_command
from ..local.preflight.models import mistyped
from ..local.records.measured import Measured
from ..local.resources.placement import foresee
from .plan_table import plan_lines


def add_plan(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(commands, "plan", help="predict a job's batches, memory and seconds before it runs")
    add_manifest(parser)
    for name, what in (
        ("flops", "floating-point operations a second that one GPU reaches, such as 4e14"),
        ("memory", "bytes a second at which a generator reads its weights from GPU memory"),
        ("link", "bytes a second at which weights are broadcast to the generators"),
    ):
        parser.add_argument(f"--{name}", type=_rate, metavar="RATE", help=what)
    parser.add_argument(
        "--measured",
        type=Path,
        metavar="DIR",
        help="work directory of a run from which rates that are not given are taken",
    )
    parser.add_argument(
        "--after",
        type=Path,
        metavar="DIR",
        help="work directory of a run of this job, with which the prediction is compared",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    job = load(options.file, options.set, variables=options.variables)
    machine, filled = Machine(options.flops, options.memory, options.link), 1.0
    if options.measured is not None:
        measured = Measured.read(options.measured)
        machine, filled = _or(machine, measured.machine()), measured.filled
    after = None if options.after is None else Measured.read(options.after)
    file_sizes = model_sizes(job.spec)
    batch = Batch.of(job.spec, filled)
    try:
        work = Work.of(job.spec, file_sizes, batch)
    except InvalidJob as error:  # models without a size are often mistyped
        raise InvalidJob([*mistyped(job.spec)] or error.problems) from None
    if after is not None:
        after.check_comparable(job.spec, file_sizes)
    seconds = predicted(work, machine)
    lines = [*_batches(job.spec, batch), *plan_lines(job.spec, file_sizes)]
    lines += [*foresee(job.spec, os.environ, file_sizes), *_table(job.spec, seconds, after)]
    for line in [*lines, *_advice(job.spec, machine, seconds, after)]:
        print_line(line, sys.stdout)
    return 0


def _batches(spec: Spec, batch: Batch) -> Iterator[str]:
    data, graph = spec.data, spec.graph
    each, what = batch.count // data.prompts_per_step, "responses" if graph.generates else "sequences"
    tokens = batch.count * batch.tokens
    yield (
        f"a step: {data.prompts_per_step} prompts x {each} = {batch.count} {what} x {batch.tokens:.0f} tokens, "
        f"prompts included = {tokens:,.0f} tokens"
    )
    ranks, trained = spec.trainer.ranks, batch.trained(spec)
    if trained.count > batch.count:
        yield f"it trains on {trained.count - batch.count} replayed responses too"
    elif spec.replay.window:
        yield f"what {spec.replay.sampler} draws again is not predicted"
    for node in graph.train:
        size = min(node.minibatch_size or trained.count, trained.count)
        size = round(batch.share(spec, node) * size)
        share = (size * batch.tokens + batch.text(spec, node)) / ranks
        most = spec.trainer.micro_batch(node.model.field)
        least, largest = max(1, ceil(share / most)), largest_row(spec, node.model)
        yield (
            f"{node.name}: epochs {node.epochs} x updates {trained.updates(node)} of {size} {what}; ranks {ranks} x "
            f"micro-batches {least} or more of {most} tokens"
        )
        if largest > most * spec.trainer.sequence_parallel_size:
            yield f"a row of up to {largest} tokens is a micro-batch by itself; of its activations {most} are counted"


def _table(spec: Spec, seconds: Mapping[str, float | None], after: Measured | None) -> Iterator[str]:
    rows = {**seconds, "step": of_step(spec, seconds)}
    yield f"{'phase':10} {'predicted s':>12}" + (f" {'was s':>10} {'off':>7}" if after else "")
    for name, value in rows.items():
        line = f"{name:10} {'-' if value is None else f'{value:.3g}':>12}"
        was = after.seconds.get(name) if after else None
        off = f"{round(value / was - 1, 2) + 0:+.0%}" if value is not None and was else "-"
        yield line + (f" {'-' if was is None else f'{was:.3g}':>10} {off:>7}" if after else "")
    if rows["step"] is not None:
        yield f"{spec.steps} steps: {rows['step'] * spec.steps:,.3g} s, without starting, evaluations and checkpoints"


def _advice(
    spec: Spec, machine: Machine, seconds: Mapping[str, float | None], after: Measured | None
) -> Iterator[str]:
    if spec.reward.functions and Role.REWARD in spec.graph.roles:
        yield "what reward functions take is not predicted"
    rates = {"--flops": machine.flops, "--memory": machine.memory, "--link": machine.link}
    missing = [option for option, rate in rates.items() if rate is None]
    if missing and None in seconds.values():
        yield f"for the others give {', '.join(missing)}, or --measured DIR of a run on the same machines"
    if after is not None:
        reached = after.machine()
        named = {"flops": reached.flops, "memory": reached.memory, "link": reached.link}
        yield "it reached " + " ".join(f"--{name} {rate:.3g}" for name, rate in named.items() if rate)


def _or(given: Machine, measured: Machine) -> Machine:
    return Machine(
        given.flops or measured.flops, given.memory or measured.memory, given.link or measured.link
    )


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, such as 4e14; got {text!r}")
    return rate
