"""`rlhf graph`: draws the dataflow graph of an algorithm or of a job."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf_api.algorithms import ALGORITHMS
from rlhf_api.errors.messages import from_pydantic
from rlhf_api.errors.problem import InvalidJob, first
from rlhf_api.host.strict_yaml import not_json
from rlhf_api.manifest.experiments import experiments, names_experiment
from rlhf_api.manifest.load import apply_override, load
from rlhf_api.rules.own_algorithm import imported, resolve
from rlhf_api.spec import Spec

from ..console.exits import print_line
from ..console.manifest_arguments import add_set
from ..console.subcommands import Commands, add_command
from .drawing import Drawing, drawing
from .mermaid import mermaid
from .picture import write_png


def add_graph(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands, "graph", help="draw the dataflow graph of an algorithm, or of a manifest's job"
    )
    parser.add_argument(
        "subject",
        metavar="ALGORITHM|FILE",
        help="name of an algorithm or experiment, module:name of an algorithm of your own, which is imported, or a "
        "manifest",
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="also write a picture to this file")
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the graph as Mermaid; returns the exit code."""
    with redirect_stdout(sys.stderr):  # of an algorithm of one's own, which is imported
        drawn = _drawing(options.subject, options.set, options.variables)
    if options.png is not None:
        write_png(drawn, options.png)
    print_line(mermaid(drawn).rstrip("\n"), sys.stdout)
    return 0


def _drawing(subject: str, overrides: list[str], variables: Mapping[str, str]) -> Drawing:
    file = Path(subject)
    if subject in ALGORITHMS and experiments()[subject] is None:
        spec = usual(subject, overrides)
        return drawing(subject, spec, resolve(spec).graph)
    if names_experiment(file) and ":" in subject:
        spec = usual(subject, overrides)
        return drawing(subject, spec, imported(spec)[1])
    job = load(file, overrides, variables=variables)
    return drawing(f"{job.metadata.name} ({job.spec.algorithm})", job.spec, resolve(job.spec).graph)


def usual(algorithm: str, overrides: Sequence[str] = ()) -> Spec:
    """A job of the algorithm with default settings, the overrides and eight responses per prompt."""
    spec = {
        "algorithm": algorithm,
        "steps": 1,
        "model": {"policy": "policy", "reward": "reward"},
        "data": {"train": ["data.jsonl"]},
        "sampling": {"responsesPerPrompt": 8},
    }
    document: Any = {"spec": spec}
    for override in overrides:
        document = apply_override(document, override)
    if problems := first(not_json(document)):
        raise InvalidJob(problems)
    try:
        return Spec.model_validate_json(json.dumps(document["spec"]))
    except ValidationError as error:
        raise from_pydantic(error, Spec, ("spec",)) from None
