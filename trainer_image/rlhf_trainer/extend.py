"""Names that other code imports of the trainer (docs/guides/extending.md); modules behind this one may move.

Each is imported when it is asked for: the process of an environment that runs what a policy wrote loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .environments.episode_sandbox import EpisodeSandbox, SandboxExhausted, SandboxLost, open_sandbox
    from .environments.sandboxed import Ran, run_in_sandbox
    from .environments.step import Step
    from .metrics.builtin_trackers import Run, Tracker
    from .ops.context import ComputeFn, LossFn, OpContext
    from .replay.buffer import EpisodeReplayBuffer
    from .tensors.batches import Loss, MicroBatch
    from .tensors.columns import Columns
    from .tensors.ragged import pad, response_mask, sequence_sums, to_tokens
    from .tensors.records import Sequences

__all__ = [
    "Columns",
    "ComputeFn",
    "EpisodeReplayBuffer",
    "EpisodeSandbox",
    "Loss",
    "LossFn",
    "MicroBatch",
    "OpContext",
    "Ran",
    "Run",
    "SandboxExhausted",
    "SandboxLost",
    "Sequences",
    "Step",
    "Tracker",
    "open_sandbox",
    "pad",
    "response_mask",
    "run_in_sandbox",
    "sequence_sums",
    "to_tokens",
]
_NAMES = {
    "environments.episode_sandbox": ("EpisodeSandbox", "SandboxExhausted", "SandboxLost", "open_sandbox"),
    "environments.sandboxed": ("Ran", "run_in_sandbox"),
    "environments.step": ("Step",),
    "metrics.builtin_trackers": ("Run", "Tracker"),
    "ops.context": ("ComputeFn", "LossFn", "OpContext"),
    "replay.buffer": ("EpisodeReplayBuffer",),
    "tensors.batches": ("Loss", "MicroBatch"),
    "tensors.columns": ("Columns",),
    "tensors.ragged": ("pad", "response_mask", "sequence_sums", "to_tokens"),
    "tensors.records": ("Sequences",),
}


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f".{module}", __package__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
