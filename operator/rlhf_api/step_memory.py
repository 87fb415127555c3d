"""Memory of the trainer's nodes that a step's responses take, all of them of the greatest length; pure.

A response token has in every rank an int64 id, an int64 version, the sampler's float32 log-probability and four bytes
for each token column that the algorithm's graph writes; rank 0 has beside it, while it arrives and until it is trained
on, int32 id and version and float32 log-probability. Its sampling mask is an int32 count and the int32 ids of the other
tokens that were kept, `topK` - 1 at most: in every rank, and in rank 0 as it arrives.
"""

from dataclasses import dataclass

from .algorithms import graph_of
from .memory import count, gigabytes
from .spec import Spec

_HELD, _ARRIVED, _COLUMN, _ID = 20, 12, 4, 4
_OF_ROWS = ("scores", "response_rewards")
"""Columns with one number a response."""
_SAID = 1e9
"""Bytes in rank 0 from which on the plan tells of them."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes in each rank, and in rank 0 all in all, for so many tokens; `masks`: those of rank 0 that are sampling
    masks."""

    tokens: int
    each: int
    first: int
    masks: int

    @classmethod
    def of(cls, spec: Spec) -> "StepMemory | None":
        """None for algorithms that train on given responses."""
        graph = graph_of(spec)
        if not graph.generates:
            return None
        sampling, steps = spec.sampling, 1 + spec.rollout.max_staleness
        tokens = spec.data.prompts_per_step * sampling.answers_per_prompt * sampling.max_new_tokens
        columns = {name for node in graph.prepare for name in node.writes if name not in _OF_ROWS}
        mask = _ID * sampling.kept  # the count, and an id for each other token
        each = tokens * (_HELD + _COLUMN * len(columns) + mask)
        return cls(tokens, each, each + steps * tokens * (_ARRIVED + mask), (1 + steps) * tokens * mask)

    @property
    def line(self) -> str:
        """For the plan; nothing where it is little."""
        if self.first < _SAID:
            return ""
        masks = f", of which {gigabytes(self.masks)} GB are sampling masks" if self.masks else ""
        return (
            f"a step's responses, {count(self.tokens)} tokens at most, take {gigabytes(self.each)} GB of the node's "
            f"memory in each rank of the trainer, {gigabytes(self.first)} GB in rank 0{masks}"
        )
