"""`rlhf plan`: predicts batches, memory and seconds of a job before it runs, and compares the prediction with a run."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from statistics import fmean, median

from pydantic import ValidationError

from rlhf_api.algorithms import graph_of
from rlhf_api.duration import PHASES, Batch, Machine, Work, of_step, predicted, rates
from rlhf_api.manifest import load
from rlhf_api.model_files import model_sizes
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.roles import Role
from rlhf_api.run import RunConfig
from rlhf_api.spec import Spec
from rlhf_api.trainer_memory import largest_row

from .exits import say
from .local.models import mistyped
from .manifest_arguments import add_manifest
from .plan_table import plan_lines
from .subcommands import Commands, add_command


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
    job = load(options.file, options.set)
    machine, filled = Machine(options.flops, options.memory, options.link), 1.0
    if options.measured is not None:
        measured = Measured.read(options.measured)
        machine, filled = _or(machine, measured.machine()), measured.filled
    after = None if options.after is None else Measured.read(options.after)
    found = model_sizes(job.spec)
    batch = Batch.of(job.spec, filled)
    try:
        work = Work.of(job.spec, found, batch)
    except InvalidJob as error:  # models without a size are often mistyped
        raise InvalidJob([*mistyped(job.spec)] or error.problems) from None
    seconds = predicted(work, machine)
    lines = [*_batches(job.spec, batch), *plan_lines(job.spec, found), *_table(job.spec, seconds, after)]
    for line in [*lines, *_advice(job.spec, machine, seconds, after)]:
        say(line, sys.stdout)
    return 0


@dataclass(frozen=True)
class Measured:
    """Measurements of a run: medians of its steps' `seconds` by phase, whole steps as `step`, and its sequences'
    average length as a share of the maximum. The first step, which has one-time costs, is left out if there are others.
    """

    folder: Path
    spec: Spec
    seconds: Mapping[str, float]
    filled: float

    @classmethod
    def read(cls, folder: Path) -> "Measured":
        """Reads a work directory. Raises InvalidJob if it holds no run with a step."""
        try:
            spec = RunConfig.model_validate_json((folder / "run.json").read_bytes()).spec
            lines = _steps(folder / "metrics.jsonl")
        except (OSError, ValueError, ValidationError) as error:
            why = "run.json is none of this version" if isinstance(error, ValidationError) else error
            message = f"holds no run that can be read: {str(why).splitlines()[0]}"
            raise InvalidJob([Problem(str(folder), message)]) from error
        if not lines:
            raise InvalidJob([Problem(str(folder), "the run has no step yet")])
        steps = lines[1:] or lines
        keys = {**{phase: f"{phase}_seconds" for phase in PHASES}, "step": "seconds"}
        found = {name: [line[key] for line in steps if line.get(key)] for name, key in keys.items()}
        # With `weights.everySteps` most steps send nothing.
        sent = [line for line in steps if line.get("broadcast_bytes")]
        found["broadcast"] = [line["broadcast_seconds"] for line in sent] or found["broadcast"]
        return cls(
            folder, spec, {name: median(each) for name, each in found.items() if each}, _filled(spec, steps)
        )

    def machine(self) -> Machine:
        """The rates that the run achieved. Raises InvalidJob if its models are missing."""
        try:
            work = Work.of(self.spec, model_sizes(self.spec), Batch.of(self.spec, self.filled))
        except InvalidJob as error:
            raise InvalidJob(
                [Problem(str(self.folder), f"its job: {each}") for each in error.problems]
            ) from None
        return rates(work, self.seconds)


def _steps(file: Path) -> list[Mapping[str, float]]:
    """The lines of a run's metrics; the last one may be torn, of a run that goes on or was killed."""
    lines = file.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _filled(spec: Spec, steps: list[Mapping[str, float]]) -> float:
    whole = Batch.of(spec)
    if graph_of(spec).generates:  # the prompts' lengths are not measured
        missing = whole.longest - fmean(step["answer_length_mean"] for step in steps)
        return 1 - missing / whole.tokens
    return fmean(step["tokens"] for step in steps) / whole.count / whole.tokens


def _batches(spec: Spec, batch: Batch) -> Iterator[str]:
    data, graph = spec.data, graph_of(spec)
    each, what = batch.count // data.prompts_per_step, "responses" if graph.generates else "sequences"
    tokens = batch.count * batch.tokens
    yield (
        f"a step: {data.prompts_per_step} prompts x {each} = {batch.count} {what} x {batch.tokens:.0f} tokens, "
        f"prompts included = {tokens:,.0f} tokens"
    )
    ranks = spec.trainer.ranks
    for node in graph.train:
        size = min(node.minibatch_size or batch.count, batch.count)
        share = (size / batch.count * tokens + batch.text(spec, node)) / ranks
        most = spec.trainer.micro_batch(node.model.field)
        least, largest = max(1, ceil(share / most)), largest_row(spec, node.model)
        yield (
            f"{node.name}: epochs {node.epochs} x updates {batch.count // size} of {size} {what}; ranks {ranks} x "
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
    if spec.reward.functions and Role.REWARD in graph_of(spec).roles:
        yield "what reward functions take is not predicted"
    told = {"--flops": machine.flops, "--memory": machine.memory, "--link": machine.link}
    missing = [option for option, rate in told.items() if rate is None]
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
