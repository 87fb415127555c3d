"""Resolves the job's algorithm, its settings and its graph: from the table, or imported from the user's module."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from ..algorithms import CUSTOM, Algorithm, algorithm_of, settings_of
from ..algorithms.base import Rules
from ..algorithms.custom import Custom
from ..algorithms.each_reward import role_columns
from ..algorithms.nodes import add_environment
from ..errors.messages import from_pydantic
from ..errors.problem import InvalidJob, Problem, show
from ..field_types import Frozen
from ..graph import Generate, Graph, GraphError, Score
from ..host.imports import described, named_object
from ..spec import Spec
from . import lora, replay, rollout
from .deepspeed import keys as deepspeed

WHERE = "spec.algorithm"


@dataclass(frozen=True)
class Resolved:
    """`settings`: the section that the operations read."""

    graph: Graph
    settings: Frozen


def resolve(spec: Spec) -> Resolved:
    """The graph and the settings of a job.

    Raises InvalidJob where the user's algorithm cannot be imported, its settings do not fit, its graph cannot run,
    reads other scores than `spec.reward` makes, compares groups without any, trains on other minibatches
    than `dynamic` can, infers with weights that the job does not have, lacks the correction that `spec.rollout` sets or
    the advantages that replay is to draw by, or has other roles and models than `spec.custom` says, by which the job's
    processes were planned.
    """
    if algorithm_of(spec) is not CUSTOM:
        return Resolved(spec.graph, settings_of(spec))
    algorithm, graph, settings = imported(spec)
    planned = spec.graph
    if graph.rows != planned.rows:
        raise InvalidJob(
            [Problem("spec.custom.rows", f"the graph trains on {graph.rows}; got {planned.rows}")]
        )
    if set(graph.roles) != set(planned.roles) or {m.name for m in graph.trained} != {
        m.name for m in planned.trained
    }:
        has = ", ".join(
            (*(role.value for role in graph.roles), *(f"a trained {m.name}" for m in graph.trained))
        )
        message = f"the graph of {spec.algorithm!r} has {has}; set scores, reference and critic accordingly"
        raise InvalidJob([Problem("spec.custom", message)])
    fine_grained = spec.reward.fine_grained
    if any(isinstance(node, Score) and node.per_token is not fine_grained for node in graph.nodes):
        reads = "whole responses" if fine_grained else "each token (Score(per_token=True))"
        message = f"the graph of {spec.algorithm!r} reads scores of {reads}; got {show(fine_grained)}"
        raise InvalidJob([Problem("spec.reward.fineGrained", message)])
    problems = [
        *_rounds(spec, graph),
        *_single_rewards(spec, graph),
        *replay.dynamic_problems(spec, graph),
        *replay.paired_problems(spec, graph),
        *lora.averaged(spec, graph),
        *lora.without_base(spec, graph),
        *deepspeed.averaged(spec, graph),
        *rollout.uncorrected(spec, graph),
        *replay.unweighted(spec, graph),
    ]
    if algorithm.rules is not None:
        problems += _ruled(algorithm.rules, spec, settings)
    if problems:
        raise InvalidJob(problems)
    return Resolved(graph, settings)


def _rounds(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Dynamic sampling without what it compares."""
    if not isinstance(graph.source, Generate) or not graph.source.rounds:
        return
    message = f"the graph of {spec.algorithm!r} replaces groups whose responses all have the same score"
    if spec.sampling.responses_per_prompt < 2:
        yield Problem("spec.sampling.responsesPerPrompt", f"{message}; use at least 2; got 1")
    if not any("scores" in node.writes for node in graph.prepare):
        yield Problem(WHERE, f"{message} (Generate(rounds=...)), and no node of it writes scores")


def _single_rewards(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Columns of single rewards that the job has not."""
    names = role_columns(spec)
    for node in graph.nodes:
        for column in node.writes[1:] if isinstance(node, Score) else ():
            if column not in names:
                message = f"node {node.name!r} writes {column!r}, the scores of no reward with a weight"
                yield Problem(WHERE, f"{message}; those of the job: {', '.join(names) or 'none'}")


def imported(spec: Spec) -> tuple[Algorithm, Graph, Frozen]:
    """The user's algorithm with its graph and settings, not compared with `spec.custom`.

    Raises InvalidJob if it cannot be imported, its settings are invalid, or its graph cannot be made or run.
    """
    algorithm, declared = _import(spec.algorithm), settings_of(spec)
    assert isinstance(declared, Custom)
    settings = _settings(spec.algorithm, algorithm, declared)
    try:
        graph: object = algorithm.graph(spec, settings)
        if isinstance(graph, Graph):
            graph = Graph(tuple(add_environment(graph.nodes, spec)))
    except GraphError as error:
        raise _wrong(f"the graph of {spec.algorithm!r} cannot run: {error}") from error
    except Exception as error:
        raise _wrong(f"the graph of {spec.algorithm!r} cannot be made: {described(error)}") from error
    if not isinstance(graph, Graph):
        raise _wrong(
            f"the graph function of {spec.algorithm!r} returned a {type(graph).__name__}, not a Graph"
        )
    return algorithm, graph, settings


def _import(path: str) -> Algorithm:
    try:
        algorithm = named_object(path)
    except Exception as error:  # a user's module may raise any exception
        raise _wrong(f"{path!r} cannot be imported: {described(error)}") from error
    if not isinstance(algorithm, Algorithm):
        raise _wrong(f"{path!r} is a {type(algorithm).__name__}, not an rlhf_api.Algorithm")
    return algorithm


def _settings(path: str, algorithm: Algorithm, declared: Custom) -> Frozen:
    model: object = algorithm.settings or Frozen
    if not (isinstance(model, type) and issubclass(model, Frozen)):
        raise _wrong(f"the settings of {path!r} have to be a class that derives from rlhf_api.Frozen")
    try:
        return model.model_validate_json(json.dumps(declared.settings))
    except ValidationError as error:
        raise from_pydantic(error, model, ("spec", "custom", "settings")) from None


def _ruled(rules: Rules, spec: Spec, settings: Frozen) -> list[Problem]:
    try:
        return list(rules(spec, "spec.custom.settings", settings))
    except Exception as error:
        raise _wrong(f"the rules of {spec.algorithm!r} raised {described(error)}") from error


def _wrong(message: str) -> InvalidJob:
    return InvalidJob([Problem(WHERE, message)])
