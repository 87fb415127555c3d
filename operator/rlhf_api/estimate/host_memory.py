"""Host memory of the trainer's nodes for a step's responses, all at maximum length; pure.

A response token has in every rank an int64 id, an int64 version, the sampler's float32 log-probability and four bytes
for each token column that the algorithm's graph writes; rank 0 also has, from arrival until it is trained on, an int32
id and version and a float32 log-probability. Its sampling mask is an int32 count and the int32 ids of the other kept
tokens, at most `topK` - 1: on every rank, and on rank 0 once more at arrival. Replayed experts are int16, of prompts
too; those that generators chose are wherever the tokens are, those of the policy are of the present step alone.

Rank 0 keeps the responses that the step before trained on too, to be saved; with a replay window every rank keeps those
of as many steps.
"""

from dataclasses import dataclass

from ..graph import REWARD
from ..spec import Spec
from .memory import count, gigabytes

_HELD, _ARRIVED, _COLUMN, _ID, _EXPERT = 20, 12, 4, 4, 2
_OF_ROWS = ("scores", "reward_scores", "response_rewards")
"""Columns with one number per response."""
_SAID = 1e9
"""Bytes on rank 0 above which the plan mentions them."""


def _is_of_rows(name: str) -> bool:
    return name in _OF_ROWS or name.startswith(REWARD)


@dataclass(frozen=True)
class StepMemory:
    """Bytes on each rank, and in total on rank 0, for the `tokens` of a step and those of earlier ones that are kept;
    `masks`, `experts`: rank 0's bytes of sampling masks and of replayed experts."""

    tokens: int
    each: int
    first: int
    masks: int
    experts: int = 0

    @classmethod
    def of(cls, spec: Spec, choices: int = 0) -> "StepMemory | None":
        """The memory of a step's columns; None for algorithms that train on given responses. `choices`: experts of a
        token of the policy, in all layers."""
        graph = spec.graph
        if not graph.generates:
            return None
        sampling, steps = spec.sampling, 1 + spec.rollout.max_staleness
        tokens = spec.data.prompts_per_step * sampling.responses_per_prompt * spec.longest_response
        columns = {name for node in graph.prepare for name in node.writes if not _is_of_rows(name)}
        mask = _ID * sampling.mask_size  # the count, and an id for each other kept token
        token, window = _HELD + _COLUMN * len(columns) + mask, max(spec.replay.window, 0)
        kept_windows = max(window, 1)
        first = tokens * ((1 + kept_windows) * token + steps * (_ARRIVED + mask))
        masks = (1 + kept_windows + steps) * tokens * mask
        with_prompts = tokens * (spec.longest_response + spec.data.max_prompt_length) // spec.longest_response
        experts = _EXPERT * choices * with_prompts
        windows, windows_of_first = {
            "none": (0, 0),
            "policy": (1, 1),
            "rollout": (1 + window, 1 + kept_windows + steps),
        }[spec.experts.replay]
        each = tokens * (1 + window) * token + windows * experts
        return cls(tokens, each, first + windows_of_first * experts, masks, windows_of_first * experts)

    @property
    def line(self) -> str:
        """A line for the plan; empty if the memory is small."""
        if self.first < _SAID:
            return ""
        parts = {"sampling masks": self.masks, "experts": self.experts}
        masks = "".join(f", of which {gigabytes(size)} GB are {what}" for what, size in parts.items() if size)
        return (
            f"a step's responses, {count(self.tokens)} tokens at most, take {gigabytes(self.each)} GB of the node's "
            f"memory in each rank of the trainer, {gigabytes(self.first)} GB in rank 0{masks}"
        )
