"""Names that other code imports of the trainer (docs/guides/extending.md); modules behind this one may move."""

from .environments.step import Step
from .metrics.builtin_trackers import Run, Tracker
from .ops.context import ComputeFn, LossFn, OpContext
from .replay.buffer import EpisodeReplayBuffer
from .tensors.batches import Loss, MicroBatch
from .tensors.ragged import pad, response_mask, sequence_sums, to_tokens
from .tensors.records import Columns, Sequences

__all__ = [
    "Columns",
    "ComputeFn",
    "EpisodeReplayBuffer",
    "Loss",
    "LossFn",
    "MicroBatch",
    "OpContext",
    "Run",
    "Sequences",
    "Step",
    "Tracker",
    "pad",
    "response_mask",
    "sequence_sums",
    "to_tokens",
]
