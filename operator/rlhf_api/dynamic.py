"""Rules on a graph under `replay.streamDataLoaderType: dynamic`, which trains on each minibatch as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .graph import Generate, Graph
from .problems import Problem

if TYPE_CHECKING:
    from .spec import Spec

WHERE = "spec.replay.streamDataLoaderType"


def problems(spec: Spec, graph: Graph) -> Iterator[Problem]:
    """Problems of a graph whose training nodes name different minibatch sizes, as all models train on the same
    minibatch, or that waits for the scores of a whole step."""
    if not spec.replay.dynamic:
        return
    if isinstance(graph.source, Generate) and graph.source.rounds:
        message = (
            "dynamic trains before all scores of a step are there; without dynamicSampling, or use fixed"
        )
        yield Problem(WHERE, f"{message}; got 'dynamic'")
    if len({node.minibatch_size for node in graph.train}) > 1:
        sizes = ", ".join(f"{node.name} {node.minibatch_size or 'a whole step'}" for node in graph.train)
        message = (
            "dynamic trains every model on the same minibatch, as it comes; the responses of an update are: "
            f"{sizes}; give all the same, or use fixed; got 'dynamic'"
        )
        yield Problem(WHERE, message)
