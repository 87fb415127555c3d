"""Makes language models and tokenizers from scratch."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from rlhf_api.errors.similar import closest
from rlhf_api.sections.model import VISION

from .heads import language_class
from .load import check_fit
from .vision import TOKENS, created_config


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
        own = "name the class of a model of your own in spec.model.architectures"
        raise ValueError(
            f"Transformers has no model type {model_type!r}; {f'did you mean {close!r}?' if close else own}"
        )
    if model_type not in VISION and CONFIG_MAPPING[model_type] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        message = f"{model_type!r} models have no ...ForCausalLM class"
        raise ValueError(f"{message}; take another type, or name one in spec.model.architectures")
    try:
        text = {"vocab_size": len(tokenizer)} | tokens
        given = created_config(config, text, tokenizer) if model_type in VISION else text | dict(config)
        full = AutoConfig.for_model(model_type, **given)
        check_fit(full, tokenizer, max_length=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = language_class(full).from_config(full, dtype=torch.float32)
            return model
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"cannot make a {model_type!r} model of {dict(config)}: {error}") from error


def create_tokenizer(
    texts: Iterable[str], vocab_size: int, *, images: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on `texts`, which can encode any text; with <pad> and <eos>, and with `images`
    `vision.TOKENS`, which it never adds itself.

    At most `vocab_size` tokens, at least 258 (256 bytes and 2 special tokens; with images 262) or ValueError.
    """
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    of_images = [*TOKENS.values()] if images else []
    smallest = 256 + len(special) + len(of_images)
    if vocab_size < smallest:
        raise ValueError(
            f"a byte-level tokenizer needs at least {smallest} tokens; got vocab_size {vocab_size}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*special.values(), *of_images],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, additional_special_tokens=of_images)
