"""`rlhf graph`: prints the dataflow graph of an algorithm or of a job as Mermaid."""

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
from rlhf_api.graph import Graph
from rlhf_api.host.job_files import provided
from rlhf_api.host.strict_yaml import not_json
from rlhf_api.manifest.experiments import experiments, names_experiment
from rlhf_api.manifest.load import apply_override, load
from rlhf_api.rules.own_algorithm import imported, resolve
from rlhf_api.spec import Spec

from ..console.exits import print_line
from ..console.manifest_arguments import add_set
from ..console.subcommands import Commands, add_command
from .mermaid import mermaid


def add_graph(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands, "graph", help="print the dataflow graph of an algorithm, or of a manifest's job, as Mermaid"
    )
    parser.epilog = (
        "GitHub, GitLab, MkDocs Material and https://mermaid.live draw the output; save a picture there."
    )
    parser.add_argument(
        "subject",
        metavar="ALGORITHM|FILE",
        help="name of an algorithm or experiment, module:name of an algorithm of your own, which is imported, or a "
        "manifest",
    )
    add_set(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the graph as Mermaid; returns the exit code."""
    with redirect_stdout(sys.stderr):  # of an algorithm of one's own, which is imported
        spec, graph = _subject(options.subject, options.set, options.variables)
    print_line(mermaid(spec, graph), sys.stdout)
    return 0


def _subject(subject: str, overrides: list[str], variables: Mapping[str, str]) -> tuple[Spec, Graph]:
    file = Path(subject)
    if subject in ALGORITHMS and experiments()[subject] is None:
        spec = usual(subject, overrides)
        return spec, resolve(spec).graph
    if names_experiment(file) and ":" in subject:
        spec = usual(subject, overrides)
        return spec, imported(spec)[1]
    spec = load(file, overrides, variables=variables).spec
    with provided(spec.workspace.files):
        return spec, resolve(spec).graph


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
