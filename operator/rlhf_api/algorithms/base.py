"""Algorithm: its settings section, its graph, and its cross-field rules. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..base import Frozen
from ..graph import Graph
from ..problems import Problem

if TYPE_CHECKING:
    from ..spec import Spec

Rules = Callable[["Spec", str, Any], Iterator[Problem]]
"""(spec, the settings' field such as `spec.ppo`, settings) -> problems."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of `rlhf_api.algorithms.ALGORITHMS`, or an object named in a manifest as `module:name`.

    `settings` is the pydantic model of the algorithm's own section, None if it has none; `graph` builds a job's
    dataflow graph from its spec and that section; `rules` yields cross-field problems; `usual` has what the
    experiment of its name sets of `spec`.
    """

    name: str
    settings: type[Frozen] | None
    graph: Callable[[Spec, Any], Graph]
    rules: Rules | None = None
    usual: Mapping[str, Any] = field(default_factory=dict, hash=False)
