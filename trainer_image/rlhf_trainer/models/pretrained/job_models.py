"""Loads the models and tokenizers that a manifest names; errors name the manifest's field."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlhf_api.contract.run import RunConfig
from rlhf_api.dataset.chat_template import given_template
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.estimate.model_files import tokens_differ
from rlhf_api.field_types import DType, Head, ModelField
from rlhf_api.graph import Model
from rlhf_api.roles import Role

from ...process.settings import ModelSource, frozen_source, longest, longest_update, model_source
from . import load

Loader = Callable[[str, torch.dtype], PreTrainedModel]
LOADERS: dict[Head, Loader] = {
    "causal": load.load_policy,
    "score": load.load_reward,
    "value": load.load_critic,
    "token_score": load.load_process_reward,
}
FROZEN = {**LOADERS, "score": load.load_scorer, "token_score": load.load_token_reward}
"""Loaders of models that are not trained."""
Loaded = TypeVar("Loaded")


def load_trained(config: RunConfig, used: Model, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Loads what a trained model of the graph starts from, in its compute dtype.

    Raises InvalidJob, naming the field that holds the path, if the model cannot be loaded or trained, or does not
    support this tokenizer's ids or the job's longest sequence.
    """
    source, dtype = trained_source(config, used.field, tokenizer), config.spec.trained_dtype(used.field)
    length = longest_update(config.spec) if used.field == "policy" else longest(config.spec)

    def trainable(path: str, dtype: torch.dtype) -> PreTrainedModel:
        model = LOADERS[used.head](path, dtype)
        load.check_trainable(model, path)
        if used.field == "policy":
            load.check_end_tokens(getattr(model, "generation_config", None), model.config, path)
        return model

    return _load(trainable, source, dtype, tokenizer, length)


def trained_source(config: RunConfig, field: ModelField, tokenizer: PreTrainedTokenizerBase) -> ModelSource:
    """The source of a trained model: `model_source`, but the policy's for a critic that would start from a reward model
    with another tokenizer and read the policy's ids as other tokens. Raises InvalidJob where the manifest names
    such a critic.
    """
    source, policy = model_source(config, field), model_source(config, "policy")
    if field != "critic" or source.path == policy.path:
        return source
    try:
        own = load.load_tokenizer(source.path)
    except ValueError:  # a critic needs none of its own
        return source
    if load.reads_tokens_of(own, tokenizer):
        return source
    if config.spec.model.critic is None:
        return policy
    message = (
        f"has another tokenizer than the policy, and would read its tokens as others; got {source.path!r}"
    )
    raise InvalidJob([Problem(source.where, message)])


def load_frozen(
    config: RunConfig,
    role: Role,
    tokenizer: PreTrainedTokenizerBase,
    head: Head | None = None,
    source: ModelSource | None = None,
) -> PreTrainedModel:
    """Loads the frozen model of a role, or what stands in for it, or one of several from its `source`, in its compute
    dtype. `head` is the role's own unless given: rewards of tokens need another. Raises InvalidJob, as `load_trained`
    does.
    """
    source, dtype = source or frozen_source(config, role), config.dtype(role)
    loader = FROZEN[head or role.row.head]
    return _load(loader, source, dtype, tokenizer, longest(config.spec))


def _load(
    loader: Loader, source: ModelSource, dtype: DType, tokenizer: PreTrainedTokenizerBase, length: int
) -> PreTrainedModel:
    def fitting() -> PreTrainedModel:
        model = loader(source.path, getattr(torch, dtype))
        load.check_fit(model.config, tokenizer, length)
        return model

    return loading(source.where, fitting)


def check_served(config: RunConfig, role: Role, tokenizer: PreTrainedTokenizerBase, length: int) -> int:
    """Checks, without loading weights, the frozen model of a role that vLLM is to run on sequences of up to `length`
    tokens; returns its maximum number of positions, 0 if unbounded. Raises InvalidJob, as `load_trained` does.
    """
    source = frozen_source(config, role)

    def fitting() -> int:
        served_config = load.served_config(source.path, score=role.row.head == "score")
        load.check_fit(served_config, tokenizer, length)
        return load.positions_of(served_config)

    return loading(source.where, fitting)


def check_reference_tokens(config: RunConfig) -> None:
    """Raises InvalidJob where the manifest names a reference with another tokenizer, to which the policy's ids are
    other tokens. One without a tokenizer of its own is not compared."""
    source = model_source(config, "reference")
    if config.spec.model.reference is None:
        return
    try:
        own = load.load_tokenizer(source.path)
    except ValueError:
        return
    tokenizer = load_job_tokenizer(config)
    if load.reads_tokens_of(own, tokenizer):
        return
    difference = tokens_differ(tokenizer.get_vocab(), own.get_vocab()) or "their merges differ"
    message = f"has another tokenizer than the policy, and would read its tokens as others: {difference}"
    raise InvalidJob([Problem(source.where, f"{message}; got {source.path!r}")])


def load_job_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """Loads the job's tokenizer, with the manifest's chat template. Raises InvalidJob, naming the field."""
    tokenizer = load_own_tokenizer(model_source(config, "tokenizer"))
    if given := config.spec.data.chat_template:
        tokenizer.chat_template = given_template(given)
    return tokenizer


def load_own_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """Loads a model's own tokenizer. Raises InvalidJob, naming the model's field."""
    return loading(source.where, lambda: load.load_tokenizer(source.path))


def loading(where: str, make: Callable[[], Loaded]) -> Loaded:
    """`make()`; a ValueError becomes an InvalidJob that names the field `where`."""
    try:
        return make()
    except ValueError as error:
        raise InvalidJob([Problem(where, str(error))]) from error


def on_device(model: PreTrainedModel) -> None:
    """Moves an inference-only model to the GPU, if there is one, and disables dropout."""
    moved: Any = model  # Transformers' `to` is typed as a function of the model alone
    moved.to("cuda" if torch.cuda.is_available() else "cpu").eval()
