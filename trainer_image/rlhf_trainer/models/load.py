"""Creates, loads and checks Hugging Face models and tokenizers."""

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from rlhf_api.problems import closest

from .. import progress


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The tokenizer at `path`; without a padding token of its own it pads with its end-of-sequence token, which is safe
    here because every mask comes from lengths. Raises ValueError if it cannot be loaded or has no end token.
    """
    tokenizer: PreTrainedTokenizerBase = _from_pretrained(AutoTokenizer, path)
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer of {path!r} has no end-of-sequence token; set eos_token in its configuration"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A causal language model. Raises ValueError if it cannot be loaded, or is a reward model or critic."""
    config = _config(path)
    if _is_classifier(config):
        kind = ", ".join(config.architectures or ())
        raise ValueError(f"{path!r} is {kind}; a policy or reference is a causal language model")
    return _model(AutoModelForCausalLM, path, dtype=dtype)


def load_reward(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A reward model, one score per sequence. A causal language model gets a new score head: small, random and the same
    at every call. Raises ValueError if the model cannot be loaded.
    """
    config = _config(path)
    if _is_classifier(config):
        _check_one_output(config, path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # every rank starts from the same head
        return _model(AutoModelForSequenceClassification, path, dtype=dtype, num_labels=1)


def served_config(path: str, *, score: bool) -> PreTrainedConfig:
    """The configuration of a model for another engine than ours: a causal language model, or with `score` a sequence
    classifier with one output. Raises ValueError for any other: that engine might initialise a random head.
    """
    config = _config(path)
    if not any(
        name.endswith("ForSequenceClassification" if score else "ForCausalLM")
        for name in config.architectures or ()
    ):
        kind = ", ".join(config.architectures or ()) or "of no known kind"
        needed = "a trained sequence-classification model" if score else "a causal language model"
        raise ValueError(f"{path!r} is {kind}; engine vllm needs {needed}")
    if score:
        _check_one_output(config, path)
    return config


def positions_of(config: PreTrainedConfig) -> int:
    """Maximum number of positions of a model; 0 if unbounded."""
    return getattr(config.get_text_config(), "max_position_embeddings", None) or 0


def load_token_reward(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A fine-grained reward model: token classification with one output. Raises ValueError for any other model."""
    config = _config(path)
    if not _is_classifier(config, "ForTokenClassification"):
        kind = ", ".join(config.architectures or ()) or "of no known kind"
        raise ValueError(f"{path!r} is {kind}; fine-grained rewards need a token-classification model")
    _check_one_output(config, path)
    return _model(AutoModelForTokenClassification, path, dtype=dtype, num_labels=1)


def load_critic(path: str, dtype: torch.dtype) -> PreTrainedModel:
    """A value model, one output per token.

    A causal language model gets a zero head, so that all values start at 0; a reward model keeps its score head, so
    that values start as the score of the text so far; a saved critic loads unchanged.
    """
    config = _config(path)
    if _is_classifier(config):
        _check_one_output(config, path)
    model = _model(AutoModelForTokenClassification, path, dtype=dtype, num_labels=1)
    head = _head(model)
    if not _is_classifier(config, "ForTokenClassification"):
        nn.init.zeros_(head.weight)
        if head.bias is not None:
            nn.init.zeros_(head.bias)
    if _is_classifier(config, "ForSequenceClassification"):
        with torch.no_grad():
            head.weight.copy_(_head(load_reward(path, dtype)).weight)
    return model


def create_policy(
    model_type: str, config: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """A fresh float32 causal language model of a Hugging Face `model_type` that fits the tokenizer, determined by the
    seed. Raises ValueError for an unknown type or an invalid configuration.
    """
    tokens = {
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    if model_type not in CONFIG_MAPPING:
        close = closest(model_type, list(CONFIG_MAPPING))
        meant = (
            f"did you mean {close!r}?"
            if close
            else "one of your own is of a class in spec.model.architectures"
        )
        raise ValueError(f"there is no model type {model_type!r}; {meant}")
    if CONFIG_MAPPING[model_type] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        message = f"{model_type!r} models have no ...ForCausalLM class"
        raise ValueError(f"{message}; take another type, or name one in spec.model.architectures")
    try:
        full = AutoConfig.for_model(model_type, **({"vocab_size": len(tokenizer)} | tokens | dict(config)))
        check_fit(full, tokenizer, max_length=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(full, dtype=torch.float32)
            return model
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"cannot make a {model_type!r} model of {dict(config)}: {error}") from error


def create_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `texts`, which can encode any text; with <pad> and <eos>, which it never
    adds itself.

    At most `vocab_size` tokens, at least 258 (256 bytes and 2 special tokens) or ValueError.
    """
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    smallest = 256 + len(special)
    if vocab_size < smallest:
        raise ValueError(
            f"a byte-level tokenizer has at least {smallest} tokens, got vocab_size {vocab_size}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


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
            "lower the prompt or answer length"
        )


def _model(kind: Any, path: str, **arguments: Any) -> PreTrainedModel:
    """Each parameter that is made or filled, and what is downloaded, is a sign of progress. Raises ValueError where the
    files lack weights, which Transformers makes at random, of anything but the head of a reward model or critic."""
    told = register_module_parameter_registration_hook(lambda *_: progress.sign())
    try:
        with progress.growing(Path(HF_HUB_CACHE, f"models--{path.replace('/', '--')}")):
            model, loaded = _from_pretrained(kind, path, output_loading_info=True, **arguments)
    finally:
        told.remove()
    needed = "" if kind is AutoModelForCausalLM else f"{model.base_model_prefix}."
    lacks = sorted(name for name in loaded["missing_keys"] if name.startswith(needed))
    if lacks:
        more = f" and {len(lacks) - 3} more" if len(lacks) > 3 else ""
        raise ValueError(
            f"{path!r} lacks weights of {type(model).__name__}: {', '.join(lacks[:3])}{more}; they would be random; "
            "are the names in its files those of Transformers?"
        )
    found: PreTrainedModel = model
    return found


def _from_pretrained(kind: Any, path: str, **arguments: Any) -> Any:
    if path.startswith((".", "/", "~")) and not Path(path).is_dir():
        raise ValueError(f"there is no directory {path!r}")
    try:
        return kind.from_pretrained(path, trust_remote_code=False, **arguments)
    except Exception as error:  # the libraries below raise almost any exception for invalid input
        _check_readable(path)
        _check_known(path)
        where = "" if Path(path).is_dir() else ", which is no directory, from the hub"
        first, *rest = (str(error) or type(error).__name__).strip().splitlines()
        # What such a line introduces is the reason.
        reason = " ".join(" ".join([first, *rest]).split()) if first.rstrip().endswith(":") else first
        raise ValueError(f"cannot load {path!r}{where}: {reason}") from error


def _check_known(path: str) -> None:
    """Raises ValueError for a model of a type that neither Transformers nor the job has: code beside it is not run."""
    try:
        config, _ = PreTrainedConfig.get_config_dict(path)
    except Exception:
        return  # no configuration to tell
    kind = config.get("model_type")
    if kind is not None and kind not in CONFIG_MAPPING:
        raise ValueError(
            f"cannot load {path!r}: Transformers has no model type {kind!r}; name its classes in "
            "spec.model.architectures (code that lies beside a model is not run)"
        )


def _check_readable(path: str) -> None:
    """Raises ValueError for a file that this user may not read, which safetensors reports as missing."""
    for file in sorted(Path(path).glob("*")):
        if not os.access(file, os.R_OK, effective_ids=True):
            found = file.stat()
            raise ValueError(
                f"cannot load {path!r}: user {os.geteuid()} may not read {file.name}, which is of user {found.st_uid} "
                f"with mode {stat.filemode(found.st_mode)}; chmod -R a+rX {path!r}"
            )


def _config(path: str) -> PreTrainedConfig:
    config: PreTrainedConfig = _from_pretrained(AutoConfig, path)
    return config


def _is_classifier(config: PreTrainedConfig, kind: str = "Classification") -> bool:
    return any(name.endswith(kind) for name in config.architectures or ())


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
