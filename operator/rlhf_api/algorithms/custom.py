"""A user's own algorithm, named `module:name`: the facts a host needs without importing it."""

from collections.abc import Iterator

from pydantic import JsonValue

from ..errors.problem import Problem
from ..field_types import Frozen, RowKind
from ..graph import (
    CRITIC,
    POLICY,
    REFERENCE,
    SEQUENCES,
    Compute,
    Dataset,
    Generate,
    Graph,
    Infer,
    Node,
    Score,
    Train,
)
from ..sections.common import CommonSpec
from .base import Algorithm
from .nodes import add_environment


class Custom(Frozen):
    """For `algorithm: module:name`: parts of its graph, by which roles and memory are planned; the trainer refuses a
    graph that differs."""

    rows: RowKind = "prompts"
    """Kind of the dataset's rows; for `prompts` the policy samples the responses."""
    scores: bool = True
    """The graph has a Score node, so the job has the reward role; false for `rows` other than `prompts`."""
    reference: bool = False
    """The graph calls the reference."""
    critic: bool = False
    """The graph trains a critic too."""
    settings: dict[str, JsonValue] = {}
    """The algorithm's own settings."""


def _graph(spec: CommonSpec, settings: Custom) -> Graph:
    source = Generate() if settings.rows == "prompts" else Dataset(rows=settings.rows)
    nodes: list[Node] = [source]
    if settings.scores and settings.rows == "prompts":
        nodes.append(Score())
    if settings.reference:
        nodes.append(Infer(name="reference", model=REFERENCE, writes=("reference_logprobs",)))
    nodes.append(Compute(name="own", function="the algorithm's own", reads=(SEQUENCES,)))
    nodes.append(Train(name="policy", model=POLICY, loss="the algorithm's own", reads=(SEQUENCES,)))
    if settings.critic:
        nodes.append(Train(name="critic", model=CRITIC, loss="the algorithm's own", reads=(SEQUENCES,)))
    return Graph(tuple(add_environment(nodes, spec)))


def _rules(spec: CommonSpec, where: str, settings: Custom) -> Iterator[Problem]:
    if settings.scores and settings.rows != "prompts":
        message = f"must be false with rows: {settings.rows}: only sampled responses have rewards; got true"
        yield Problem(f"{where}.scores", message)
    elif spec.environment is not None and not settings.scores:
        yield Problem(f"{where}.scores", "the environment's rewards are scores; use true; got false")


ALGORITHM = Algorithm(name="custom", settings=Custom, graph=_graph, rules=_rules)
