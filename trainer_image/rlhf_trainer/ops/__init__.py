"""Tables of the operations that a graph names by key; a key may also be `module:name`, a user's function."""

from collections.abc import Callable

from rlhf_api.spec import Spec

from ..batches import (
    OutputFn,
    ResponseLogprobs,
    response_values,
    sequence_scores,
)
from . import compute, losses
from .context import ComputeFn, LossFn, OpContext, find

COMPUTE: dict[str, ComputeFn] = {
    "importance_weights": compute.importance_weight_column,
    "overlong_mask": compute.overlong_mask,
    "sum_scores": compute.sum_scores,
    "token_rewards": compute.token_reward_column,
    "token_rewards_centered": compute.centered_token_reward_column,
    "response_rewards": compute.response_reward_column,
    "gae": compute.gae,
    "grpo": compute.grpo,
    "group_mean": compute.group_mean,
    "rloo": compute.rloo,
    "reinforce_pp": compute.reinforce_pp,
}
LOSSES: dict[str, LossFn] = {
    "likelihood": losses.likelihood,
    "preference": losses.preference,
    "dpo": losses.dpo,
    "policy": losses.policy,
    "gspo": losses.gspo,
    "cispo": losses.cispo,
    "value": losses.value,
}
OUTPUTS: dict[str, Callable[[Spec], OutputFn]] = {
    "logprobs": lambda spec: ResponseLogprobs(spec.sampling.temperature),
    "logprobs_untempered": lambda _spec: ResponseLogprobs(),
    "logprobs_and_entropy": lambda spec: ResponseLogprobs(spec.sampling.temperature, entropy=True),
    "logprobs_and_entropy_bonus": lambda spec: ResponseLogprobs(
        spec.sampling.temperature, entropy=True, differentiable=True
    ),
    "values": lambda _spec: response_values,
    "scores": lambda _spec: sequence_scores,
}
"""Log-probabilities are at the sampling temperature, but for `logprobs_untempered`; the entropy has a gradient with
`logprobs_and_entropy_bonus` alone, which costs memory."""
ROW_OUTPUTS = ("scores",)
"""Outputs with one number per sequence; the others have one per response token."""


def output_fn(key: str, spec: Spec) -> OutputFn:
    """The function that reads `key` from a model's logits."""
    if key in OUTPUTS:
        return OUTPUTS[key](spec)
    own: OutputFn = find({}, key)
    return own


__all__ = [
    "COMPUTE",
    "LOSSES",
    "OUTPUTS",
    "ROW_OUTPUTS",
    "ComputeFn",
    "LossFn",
    "OpContext",
    "find",
    "output_fn",
]
