"""Loads and checks Hugging Face models and tokenizers."""

import json
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf_api.field_types import Head

from .files import from_pretrained, load_config, load_model
from .heads import class_with_head, language_class

CAUSAL, SCORE, VALUE = "ForCausalLM", "ForSequenceClassification", "ForTokenClassification"
"""Ends of the names of model classes."""
HEADS = {SCORE: AutoModelForSequenceClassification, VALUE: AutoModelForTokenClassification}


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`, as it is. Raises ValueError if it cannot be loaded or has no end token."""
    tokenizer: PreTrainedTokenizerBase = from_pretrained(AutoTokenizer, path)
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer of {path!r} has no end-of-sequence token; set eos_token in its configuration"
        )
    return tokenizer


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that fills rows in this job: the tokenizer's padding token, else its end token. Every mask here comes
    from lengths, so an end token stays trained on; what is saved never names it as padding (`export.padding`)."""
    own = tokenizer.pad_token_id
    token: int = tokenizer.eos_token_id if own is None else own
    return token


def load_policy(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model. Raises ValueError if it cannot be loaded, or is a reward model or critic."""
    config = load_config(path)
    if _is(config, "Classification"):
        raise ValueError(f"{path!r} is {_kind(config)}; a policy or reference is a causal language model")
    return load_model(language_class(config), path, dtype=dtype)


def load_reward(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A reward model to train, one score per sequence. A causal language model gets a new score head: small, random and
    the same at every call. Raises ValueError if the model cannot be loaded.
    """
    return _with_new_head(path, dtype, SCORE)


def load_process_reward(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A process reward model to train, one score per token. A causal language model gets a new head, as of
    `load_reward`. Raises ValueError if the model cannot be loaded."""
    return _with_new_head(path, dtype, VALUE)


def load_scorer(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A reward model to score with. Raises ValueError for any other model: scores of a new head would be random."""
    needed = "a reward needs a trained sequence-classification model, as algorithm reward makes"
    return _with_head(_check_kind(path, SCORE, needed), path, dtype, SCORE, trained=True)


def load_token_reward(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A fine-grained reward model: token classification with one output. Raises ValueError for any other model."""
    config = _check_kind(path, VALUE, "rewards of tokens and steps need a token-classification model")
    return _with_head(config, path, dtype, VALUE, trained=True)


def served_config(path: str, *, score: bool) -> PreTrainedConfig:
    """The configuration of a model for another engine than ours: a causal language model, or with `score` a sequence
    classifier with one output. Raises ValueError for any other: that engine might initialise a random head.
    """
    kind, needed = (
        (SCORE, "a trained sequence-classification model") if score else (CAUSAL, "a causal language model")
    )
    config = _check_kind(path, kind, f"engine vllm needs {needed}")
    if score:
        _check_one_output(config, path)
    return config


def positions_of(config: PreTrainedConfig) -> int:
    """Maximum number of positions of a model; 0 if unbounded."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or 0


def load_critic(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A value model, one output per token.

    A causal language model gets a zero head, so that all values start at 0; a reward model keeps its score head, so
    that values start as the score of the text so far; a saved critic loads unchanged.
    """
    config = load_config(path)
    saved = _is(config, VALUE)
    model = _with_head(config, path, dtype, VALUE, trained=saved)
    head = _head(model)
    if not saved:
        nn.init.zeros_(head.weight)
        if head.bias is not None:
            nn.init.zeros_(head.bias)
    if _is(config, SCORE):
        with torch.no_grad():
            head.weight.copy_(_head(load_reward(path, dtype)).weight)
    return model


def made_of(config: PreTrainedConfig, head: Head) -> PreTrainedModel:
    """A model of this configuration and kind without weights, on torch's `meta` device."""
    kind = {"causal": CAUSAL, "score": SCORE}.get(head, VALUE)
    model_class: Any = (
        language_class(config) if kind == CAUSAL else class_with_head(HEADS[kind], kind, config)
    )
    with torch.device("meta"):
        model: PreTrainedModel = getattr(model_class, "from_config", model_class)(config)
        return model


def check_fit(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Raises ValueError where a model of `config` does not fit this tokenizer's ids or `max_length` positions."""
    text = config.get_text_config()
    if len(tokenizer) > text.vocab_size:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens but the model has embeddings for {text.vocab_size}; "
            "use the tokenizer that the model was trained with"
        )
    positions = getattr(text, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise ValueError(
            f"sequences of up to {max_length} tokens do not fit a model with {positions} positions; "
            "lower the prompt or response length (of episodes, environment.maxTokens)"
        )


def check_end_tokens(generation: GenerationConfig | None, config: PreTrainedConfig, path: str) -> None:
    """Raises ValueError where the model's generation_config.json names an end token that it has no embedding for:
    engines refuse every prompt with such a token."""
    named = generation.eos_token_id if generation is not None else None
    size = config.get_text_config().vocab_size
    for token in named if isinstance(named, list) else [named]:
        if token is not None and not 0 <= token < size:
            raise ValueError(
                f"eos_token_id of {path}/generation_config.json must be of the model's {size} tokens, from 0 to "
                f"{size - 1}; got {token}"
            )


def reads_tokens_of(own: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """True if the ids that `other` makes are the same tokens to a model with the tokenizer `own`: its vocabulary has
    them, and its merges are equal."""
    return other.get_vocab().items() <= own.get_vocab().items() and _merges(other) == _merges(own)


def _merges(tokenizer: PreTrainedTokenizerBase) -> object:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else json.loads(backend.to_str())["model"].get("merges")


def check_trainable(model: PreTrainedModel, path: str) -> None:
    """Raises ValueError for quantised weights: an optimizer would take the stored numbers without their scales."""
    if getattr(model, "is_quantized", False):
        method = getattr(model, "quantization_method", "of an unknown kind")
        raise ValueError(
            f"{path!r} is quantised ({getattr(method, 'value', method)}), and such weights cannot be trained; use the "
            "model's unquantised weights"
        )


def _with_new_head(path: str, dtype: torch.dtype, kind: str) -> PreTrainedModel:
    """A model of one output, with a new head unless it is of this kind already."""
    config = load_config(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # every rank starts from the same head
        return _with_head(config, path, dtype, kind, trained=_is(config, kind))


def _with_head(
    config: PreTrainedConfig, path: str, dtype: torch.dtype, kind: str, *, trained: bool
) -> PreTrainedModel:
    """A model of one output, whose head comes from its files if it is `trained`."""
    if _is(config, "Classification"):
        _check_one_output(config, path)
    model_class = class_with_head(HEADS[kind], kind, config)
    return load_model(model_class, path, trained_head=trained, dtype=dtype, num_labels=1)


def _check_kind(path: str, kind: str, needed: str) -> PreTrainedConfig:
    """The configuration. Raises ValueError for a model of another kind than is `needed`."""
    config = load_config(path)
    if not _is(config, kind):
        raise ValueError(f"{path!r} is {_kind(config)}; {needed}")
    return config


def _is(config: PreTrainedConfig, kind: str) -> bool:
    return any(name.endswith(kind) for name in config.architectures or ())


def _kind(config: PreTrainedConfig) -> str:
    return ", ".join(config.architectures or ()) or "of no known kind"


def _check_one_output(config: PreTrainedConfig, path: str) -> None:
    if config.num_labels != 1:
        raise ValueError(
            f"{path!r} has {config.num_labels} outputs; a reward model or critic has exactly one"
        )


def _head(model: PreTrainedModel) -> nn.Linear:
    """The last linear layer, by the attribute names of Hugging Face's classes."""
    head = getattr(model, "score", None) or getattr(model, "classifier", None)
    if not isinstance(head, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear score head, which rewards and values need")
    return head
