"""What code outside this repository imports of the trainer (docs/extending.md); modules behind this one may move."""

from .batches import Loss, MicroBatch
from .maths.ragged import pad, response_mask, sequence_sums, to_tokens
from .ops.context import ComputeFn, LossFn, OpContext
from .records import Columns, Sequences
from .replay.buffer import EpisodeReplayBuffer
from .training.trackers import Run, Tracker

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
    "Tracker",
    "pad",
    "response_mask",
    "sequence_sums",
    "to_tokens",
]
