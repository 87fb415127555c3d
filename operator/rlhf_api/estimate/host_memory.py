"""Host memory of the trainer's nodes for a step's responses, all at maximum length; pure.

A response token has in every rank an int64 id, an int64 version, the sampler's float32 log-probability and four bytes
for each token column that the algorithm's graph writes; rank 0 also has, from arrival until it is trained on, an int32
id and version and a float32 log-probability. Its sampling mask is an int32 count and the int32 ids of the other kept
tokens, at most `topK` - 1: on every rank, and on rank 0 once more at arrival.

Rank 0 keeps the responses that the step before trained on too, to be saved; with a replay window every rank keeps those
of as many steps.
"""

from dataclasses import dataclass

from ..spec import Spec
from .memory import count, gigabytes

_HELD, _ARRIVED, _COLUMN, _ID = 20, 12, 4, 4
_OF_ROWS = ("scores", "reward_scores", "response_rewards")
"""Columns with one number per response."""
_SAID = 1e9
"""Bytes on rank 0 above which the plan mentions them."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each rank, and in total on rank 0, for the `tokens` of a step and those of earlier ones that are kept;
    `masks`: rank 0's bytes of sampling masks."""

    tokens: int
    each: int
    first: int
    masks: int

    @classmethod
    def of(cls, spec: Spec) -> "StepMemory | None":
        """The memory of a step's columns; None for algorithms that train on given responses."""
        graph = spec.graph
        if not graph.generates:
            return None
        sampling, steps = spec.sampling, 1 + spec.rollout.max_staleness
        tokens = spec.data.prompts_per_step * sampling.responses_per_prompt * spec.longest_response
        columns = {name for node in graph.prepare for name in node.writes if name not in _OF_ROWS}
        mask = _ID * sampling.mask_size  # the count, and an id for each other kept token
        token, window = _HELD + _COLUMN * len(columns) + mask, max(spec.replay.window, 0)
        kept_windows = max(window, 1)
        first = tokens * ((1 + kept_windows) * token + steps * (_ARRIVED + mask))
        return cls(tokens, tokens * (1 + window) * token, first, (1 + kept_windows + steps) * tokens * mask)

    @property
    def line(self) -> str:
        """A line for the plan; empty if the memory is small."""
        if self.first < _SAID:
            return ""
        masks = f", of which {gigabytes(self.masks)} GB are sampling masks" if self.masks else ""
        return (
            f"a step's responses, {count(self.tokens)} tokens at most, take {gigabytes(self.each)} GB of the node's "
            f"memory in each rank of the trainer, {gigabytes(self.first)} GB in rank 0{masks}"
        )
