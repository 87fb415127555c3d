"""Table of the algorithms, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base import Frozen
from ..graph import Graph
from . import cispo, custom, dpo, dr_grpo, grpo, gspo, ppo, reinforce_pp, reward, rloo, sft
from .base import Algorithm

if TYPE_CHECKING:
    from ..spec import Spec

ALGORITHMS: dict[str, Algorithm] = {
    found.name: found
    for found in (
        sft.ALGORITHM,
        reward.ALGORITHM,
        dpo.ALGORITHM,
        ppo.ALGORITHM,
        grpo.ALGORITHM,
        dr_grpo.ALGORITHM,
        rloo.ALGORITHM,
        reinforce_pp.ALGORITHM,
        gspo.ALGORITHM,
        cispo.ALGORITHM,
    )
}
CUSTOM = custom.ALGORITHM


def algorithm_of(spec: Spec) -> Algorithm:
    """The algorithm of a job; `CUSTOM` for an import path."""
    return CUSTOM if ":" in spec.algorithm else ALGORITHMS[spec.algorithm]


def settings_of(spec: Spec) -> Frozen:
    """The settings section of the job's algorithm, such as `spec.ppo`; empty if it has none."""
    found = algorithm_of(spec)
    section: Frozen = getattr(spec, found.name) if found.settings else Frozen()
    return section


_last: tuple[Spec, Graph] | None = None


def graph_of(spec: Spec) -> Graph:
    """The dataflow graph of a job. The last one is remembered: a check of a spec, or a plan, asks a dozen times."""
    global _last
    found = _last
    if found is None or found[0] is not spec:
        _last = found = spec, algorithm_of(spec).graph(spec, settings_of(spec))
    return found[1]


__all__ = ["ALGORITHMS", "CUSTOM", "Algorithm", "algorithm_of", "graph_of", "settings_of"]
