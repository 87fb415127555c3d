"""Tables of the operations that a graph names by key; a key may also be `module:name`, a user's function."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rlhf_api.algorithms import CUSTOM, algorithm_of, teacher_top_k
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.graph import REFERENCE_TOP, Compute, Graph, Infer, Train
from rlhf_api.rules.own_algorithm import WHERE
from rlhf_api.spec import Spec

from ..maths.outputs import (
    ResponseEntropies,
    ResponseLogprobs,
    TopLogprobs,
    response_values,
    sequence_scores,
    token_scores,
)
from ..tensors.batches import OutputFn
from ..tensors.columns import Columns
from ..tensors.top_tokens import top_ids
from . import compute, losses, policy_losses
from .context import ComputeFn, LossFn, OpContext
from .own import guarded_compute, guarded_loss, guarded_output, own_function

COMPUTE: dict[str, ComputeFn] = {
    "importance_weights": compute.importance_weight_column,
    "overlong_mask": compute.overlong_mask,
    "entropy_mask": compute.entropy_mask,
    "clip_cov": compute.clip_cov,
    "kl_cov": compute.kl_cov,
    "sum_scores": compute.sum_scores,
    "environment_scores": compute.environment_scores,
    "token_rewards": compute.token_reward_column,
    "token_rewards_centered": compute.centered_token_reward_column,
    "response_rewards": compute.response_reward_column,
    "gae": compute.gae,
    "grpo": compute.grpo,
    "grpo_batch": compute.grpo_batch,
    "gdpo": compute.gdpo,
    "group_mean": compute.group_mean,
    "rloo": compute.rloo,
    "reinforce_pp": compute.reinforce_pp,
    "distillation": compute.distillation,
    "best_and_worst": compute.preference_column,
    "mismatched_divergence": compute.mismatched_divergence_column,
}
LOSSES: dict[str, LossFn] = {
    "likelihood": losses.likelihood,
    "preference": losses.preference,
    "step_likelihood": losses.step_likelihood,
    "dpo": losses.dpo,
    "kto": losses.kto,
    "policy": policy_losses.policy,
    "gspo": policy_losses.gspo,
    "cispo": policy_losses.cispo,
    "value": losses.value,
}
OF_TOKENS = ("policy", "cispo", "value")
"""Losses each of whose tokens counts alone: a sequence may be divided between micro-batches."""
OUTPUTS: dict[str, Callable[[Spec], OutputFn]] = {
    "logprobs": lambda spec: ResponseLogprobs(spec.sampling.temperature),
    "logprobs_untempered": lambda _spec: ResponseLogprobs(),
    "logprobs_and_entropy": lambda spec: ResponseLogprobs(spec.sampling.temperature, entropy="value"),
    "logprobs_and_entropy_bonus": lambda spec: ResponseLogprobs(
        spec.sampling.temperature, entropy="gradient"
    ),
    "top_logprobs": lambda spec: TopLogprobs(spec.sampling.temperature, count=teacher_top_k(spec)),
    "entropies": lambda spec: ResponseEntropies(spec.sampling.temperature, entropy="value"),
    "values": lambda _spec: response_values,
    "scores": lambda _spec: sequence_scores,
    "token_scores": lambda _spec: token_scores,
}
"""Log-probabilities are at the sampling temperature, but for `logprobs_untempered`; the entropy has a gradient with
`logprobs_and_entropy_bonus` alone, which costs memory."""
ROW_OUTPUTS = ("scores",)
"""Outputs with one number per sequence; the others have one per response token, `top_logprobs` several."""


def compute_fn(key: str, spec: Spec) -> ComputeFn:
    """The function of a Compute node."""
    function = _find(COMPUTE, key, "(columns, ctx)")
    return guarded_compute(key, function) if _guards(key, spec) else function


def loss_fn(key: str, spec: Spec) -> LossFn:
    """The loss of a Train node."""
    function = _find(LOSSES, key, "(columns, ctx)")
    return guarded_loss(key, function) if _guards(key, spec) else function


def output_fn(key: str, spec: Spec) -> OutputFn:
    """The function that reads `key` from a model's logits."""
    if key in OUTPUTS:
        return OUTPUTS[key](spec)
    return guarded_output(key, _find(OUTPUTS, key, "(logits, micro)"))


def train_output_fn(node: Train, spec: Spec, columns: Columns) -> OutputFn:
    """The function that reads a Train node's output from logits: of the reference's most probable tokens too, if its
    loss compares them."""
    read = output_fn(node.output, spec)
    if REFERENCE_TOP not in node.reads or not isinstance(read, ResponseLogprobs):
        return read
    return replace(read, compared=top_ids(columns[REFERENCE_TOP]))


def check(graph: Graph, spec: Spec) -> None:
    """Looks up every operation of a graph. Raises InvalidJob for an unknown key, and for a name that is not a function
    that can be imported and called as one of its node is."""
    for node in graph.nodes:
        if isinstance(node, Compute):
            compute_fn(node.function, spec)
        if isinstance(node, Train):
            loss_fn(node.loss, spec)
        if isinstance(node, Infer | Train):
            output_fn(node.output, spec)


def _guards(key: str, spec: Spec) -> bool:
    """True for a user's function, and for ours in a user's algorithm, which may not be what they were made for."""
    return ":" in key or algorithm_of(spec) is CUSTOM


def _find(table: Mapping[str, Callable[..., Any]], key: str, parameters: str) -> Callable[..., Any]:
    """The operation of a key in the table, or the user's function that `module:name` names."""
    if key in table:
        return table[key]
    if ":" not in key:
        message = f"the graph names {key!r}, which is neither one of {', '.join(table)} nor a function as module:name"
        raise InvalidJob([Problem(WHERE, message)])
    return own_function(key, parameters)


__all__ = [
    "COMPUTE",
    "LOSSES",
    "OF_TOKENS",
    "OUTPUTS",
    "ROW_OUTPUTS",
    "ComputeFn",
    "LossFn",
    "OpContext",
    "check",
    "compute_fn",
    "loss_fn",
    "output_fn",
    "train_output_fn",
]
