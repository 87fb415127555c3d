"""Heads of rewards and values for families of language models for which Transformers has none."""

from typing import Any

from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification

from rlhf_api.sections.model import VISION

GENERIC: dict[str, type] = {
    "ForSequenceClassification": GenericForSequenceClassification,
    "ForTokenClassification": GenericForTokenClassification,
}
"""Transformers' own heads, of which it makes the classes of most families: a linear layer `score` of the last hidden
states."""


def language_class(config: PreTrainedConfig) -> Any:
    """The Auto class that loads language models of the family of `config`, which may read images."""
    return AutoModelForImageTextToText if config.model_type in VISION else AutoModelForCausalLM


def class_with_head(auto: Any, kind: str, config: PreTrainedConfig) -> Any:
    """The class that loads models of `kind` and of the family of `config`: the Auto class, or where it has none the
    family's base model with Transformers' generic head. The files of such a model are those of other families: the
    base model's weights under the names that they have in the causal language model, beside `score.weight` and, of a
    token classifier, `score.bias`.
    """
    own, causal = type(config), AutoModelForCausalLM._model_mapping
    if own in auto._model_mapping or own not in causal:
        return auto
    policy: Any = causal[own]
    family = next(base for base in policy.__mro__[1:] if issubclass(base, PreTrainedModel))
    attributes = {"config_class": own, "base_model_prefix": policy.base_model_prefix, "__module__": __name__}
    return type(policy.__name__.removesuffix("ForCausalLM") + kind, (GENERIC[kind], family), attributes)
