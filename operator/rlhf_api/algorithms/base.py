"""Algorithm: its settings section, its graph, and its cross-field rules. Torch-free."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors.problem import Problem
from ..field_types import Frozen
from ..graph import Graph
from ..sections.common import CommonSpec

Rules = Callable[[CommonSpec, str, Any], Iterator[Problem]]
"""(spec, the settings' field such as `spec.ppo`, settings) -> problems."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of `rlhf_api.algorithms.ALGORITHMS`, or an object named in a manifest as `module:name`.

    `settings` is the pydantic model of the algorithm's own section, None if it has none, and `other_section` that
    section's name where it is not the algorithm's; `graph` builds a job's
    dataflow graph from its spec and that section; `rules` yields cross-field problems; `usual` has what the
    experiment of its name sets of `spec`.
    """

    name: str
    settings: type[Frozen] | None
    graph: Callable[[CommonSpec, Any], Graph]
    rules: Rules | None = None
    usual: Mapping[str, Any] = field(default_factory=dict, hash=False)
    other_section: str = ""

    @property
    def section(self) -> str:
        """Name of the field of `spec` with the settings."""
        return self.other_section or self.name
