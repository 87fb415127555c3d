"""Tables of the operations that a graph names by key; a key may also be `module:name`, a user's function."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from rlhf_api.graph import Compute, Graph, Infer, Train
from rlhf_api.problems import InvalidJob, Problem
from rlhf_api.spec import Spec

from ..batches import (
    OutputFn,
    ResponseLogprobs,
    response_values,
    sequence_scores,
)
from . import compute, losses
from .context import ComputeFn, LossFn, OpContext
from .own import WHERE, own_compute, own_loss, own_output

Operation = TypeVar("Operation")
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


def compute_fn(key: str) -> ComputeFn:
    """The function of a Compute node."""
    return _find(COMPUTE, key, own_compute)


def loss_fn(key: str) -> LossFn:
    """The loss of a Train node."""
    return _find(LOSSES, key, own_loss)


def output_fn(key: str, spec: Spec) -> OutputFn:
    """The function that reads `key` from a model's logits."""
    return _find(OUTPUTS, key, lambda path: lambda _spec: own_output(path))(spec)


def check(graph: Graph, spec: Spec) -> None:
    """Looks up every operation of a graph. Raises InvalidJob for an unknown key, and for a name that is not a function
    that can be imported and called as one of its node is."""
    for node in graph.nodes:
        if isinstance(node, Compute):
            compute_fn(node.function)
        if isinstance(node, Train):
            loss_fn(node.loss)
        if isinstance(node, Infer | Train):
            output_fn(node.output, spec)


def _find(table: Mapping[str, Operation], key: str, own: Callable[[str], Operation]) -> Operation:
    if key in table:
        return table[key]
    if ":" not in key:
        known = ", ".join(table)
        message = f"the graph names {key!r}, which is none of {known}, nor a function as module:name"
        raise InvalidJob([Problem(WHERE, message)])
    return own(key)


__all__ = [
    "COMPUTE",
    "LOSSES",
    "OUTPUTS",
    "ROW_OUTPUTS",
    "ComputeFn",
    "LossFn",
    "OpContext",
    "check",
    "compute_fn",
    "loss_fn",
    "output_fn",
]
