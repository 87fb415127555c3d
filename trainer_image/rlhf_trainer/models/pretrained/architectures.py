"""Registers the model classes of `spec.model.architectures` with Transformers, and with vLLM in its processes."""

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.model import kind_of

from ...process.imports import import_function

AUTO = {
    "Model": AutoModel,
    "ForCausalLM": AutoModelForCausalLM,
    "ForSequenceClassification": AutoModelForSequenceClassification,
    "ForTokenClassification": AutoModelForTokenClassification,
}
"""Transformers' class that loads models of a kind."""
SERVED = ("ForCausalLM", "ForSequenceClassification")
"""Kinds that vLLM has: it runs Transformers' own code of a model, with its attention in place of the model's."""


def register(names: Sequence[str]) -> None:
    """Makes the job's own classes loadable by `from_pretrained`, and their code part of what they save; may be called
    again. Raises InvalidJob, with every problem, for names that are no such classes."""
    problems = [problem for where, name in _named(names) for problem in _registered(where, name)]
    if problems:
        raise InvalidJob(problems)


def register_served(names: Sequence[str]) -> None:
    """As `register`, in a process of vLLM: models that vLLM has no class for run by Transformers' code. One that cannot
    is left to vLLM to refuse. Raises InvalidJob, as `register` does."""
    register(names)
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for where, name in _named(names):
        model_class: Any = import_function(name, where)
        kind = kind_of(name)
        if kind in SERVED and model_class.__name__ not in known and model_class.is_backend_compatible():
            ModelRegistry.register_model(
                model_class.__name__, f"vllm.model_executor.models.transformers:Transformers{kind}"
            )


def _named(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((f"spec.model.architectures[{i}]", name) for i, name in enumerate(names))


def _registered(where: str, name: str) -> Iterator[Problem]:
    try:
        model_class = import_function(name, where)
    except InvalidJob as error:
        yield from error.problems
        return
    config = getattr(model_class, "config_class", None)
    if not (isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)):
        yield Problem(where, f"must be a subclass of transformers.PreTrainedModel; got {name!r}")
    elif not (isinstance(config, type) and issubclass(config, PreTrainedConfig) and config.model_type):
        yield Problem(
            where,
            f"needs a config_class with a model_type, by which its files are recognized; got {config!r}",
        )
    else:
        auto = AUTO[kind_of(name) or ""]
        try:
            AutoConfig.register(config.model_type, config)
            auto.register(config, model_class)
        except ValueError as error:  # a model type or configuration class of Transformers' own
            yield Problem(where, f"{error}; got {name!r}")
            return
        config.register_for_auto_class()
        model_class.register_for_auto_class(auto.__name__)
