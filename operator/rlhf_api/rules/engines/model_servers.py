"""Rules of `spec.reference` and `spec.reward` about the engine that runs their model."""

from collections.abc import Iterator

from ...contract.run import roles_of
from ...contract.teachers import model_field, role_field, views_of
from ...errors.problem import Problem
from ...graph import REFERENCE, VLLM_OUTPUTS, Infer
from ...roles import Role
from ...sections.roles import ModelServerSpec
from ...sections.sampling import MOST_KEPT
from ...spec import Spec
from .arguments import engine_argument_problems

_OWNED = {
    "max-model-len": "the model and spec.data",
    "runner": "the role",
    "convert": "the role",
    "pooler-config": "the role",
    "hf-overrides": "the model",
    "tokenizer": "the trainer, which sends tokens",
    "skip-tokenizer-init": "the trainer, which sends tokens",
    "logprobs-mode": "spec.sampling.temperature",
    "worker-extension-cls": "spec.sampling.temperature",
    "weight-transfer-config": "the role, whose model is frozen",
    "seed": "the role, which samples nothing",
    "enable-prefix-caching": "the role, which needs every token's output",
    "max-num-queued-reqs": "the role, which asks for all of a chunk at once",
    "max-num-queued-tokens": "the role, which asks for all of a chunk at once",
}
"""Options of vLLM that follow from the role of a frozen model -> what sets them."""


def problems(spec: Spec) -> Iterator[Problem]:
    for role in (Role.REFERENCE, Role.REWARD):
        for view in views_of(spec, role):
            yield from _of_role(view, role)


def _of_role(spec: Spec, role: Role) -> Iterator[Problem]:
    where, section = role_field(spec, role), spec.model_server(role)
    if section.engine == "vllm":
        owned = {
            **_OWNED,
            "model": model_field(spec, role.row.model or ""),
            "dtype": f"{where}.dtype",
            "tensor-parallel-size": f"{where}.tensorParallelSize",
        }
        yield from engine_argument_problems(where, section, owned)
        yield from _served(spec, role)
    else:
        yield from _without_engine(where, section)


def _without_engine(where: str, section: ModelServerSpec) -> Iterator[Problem]:
    size = section.tensor_parallel_size
    if size > 1:
        yield Problem(
            f"{where}.tensorParallelSize",
            f"applies only to {where}.engine vllm; use 1, or set that; got {size}",
        )
    if section.engine_arguments:
        message = f"apply only to {where}.engine vllm; set that, or remove them"
        yield Problem(f"{where}.engineArguments", f"{message}; got {', '.join(section.engine_arguments)}")
    if section.untried_engine_arguments:
        message = f"applies only to {where}.engine vllm; set that, or remove it; got true"
        yield Problem(f"{where}.untriedEngineArguments", message)


def _served(spec: Spec, role: Role) -> Iterator[Problem]:
    """Problems of outputs that vLLM cannot compute, and of an engine for a model that is not used."""
    where = f"{role_field(spec, role)}.engine"
    if role not in roles_of(spec):
        return  # all of its section is refused
    if role is Role.REWARD:
        if spec.reward.models:
            message = "vLLM runs one model, spec.model.reward, and the job has spec.reward.models"
            yield Problem(where, f"{message}; use transformers, or remove them; got vllm")
        elif not spec.reward_models:
            yield Problem(
                where, "the job has no reward model; set spec.model.reward, or transformers; got vllm"
            )
        if spec.reward.fine_grained or spec.reward.step_scores:
            needs = "fineGrained" if spec.reward.fine_grained else "stepScores"
            message = f"vLLM serves no token classification of language models, which {needs} needs"
            yield Problem(where, f"{message}; use transformers; got vllm")
    else:
        if spec.sampling.mask_size and spec.graph.generates:
            message = f"vLLM's log-probabilities are over all tokens; with topK up to {MOST_KEPT} the job needs them"
            message = f"{message} over the kept ones; use transformers, or another topK; got vllm with topK"
            yield Problem(where, f"{message} {spec.sampling.top_k}")
        for node in spec.graph.prepare:
            if isinstance(node, Infer) and node.model == REFERENCE and node.output not in VLLM_OUTPUTS:
                message = f"vLLM gives {' and '.join(VLLM_OUTPUTS)}, and the algorithm asks for {node.output}"
                yield Problem(where, f"{message}; use transformers; got vllm")
