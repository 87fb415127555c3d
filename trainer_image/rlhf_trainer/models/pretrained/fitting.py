"""Checks that tokenizer, lengths and end tokens of a job fit its models, by their configurations alone: no weights are
read. The trainer runs them at its start, and `rlhf validate` on models that are here."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from transformers import GenerationConfig, PreTrainedTokenizerBase

from rlhf_api.contract.run import RunConfig, roles_of
from rlhf_api.contract.teachers import views_of
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.roles import Role

from ...data.encode import end_tokens
from ...process.settings import (
    ModelSource,
    frozen_source,
    longest,
    longest_update,
    model_source,
    reward_sources,
)
from .files import load_config
from .job_models import load_own_tokenizer, loading, trained_source
from .load import check_end_tokens, check_fit

GENERATION_CONFIG = "generation_config.json"


def fit_problems(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
    """Problems of models in local directories; those of a hub are checked when a role loads them."""
    problems = dict[str, Problem]()
    for source, length, own in _models(config, tokenizer):
        try:
            model = loading(source.where, partial(load_config, source.path))
            loading(source.where, partial(check_fit, model, own, length))
            if source == model_source(config, "policy") and config.spec.graph.generates:
                generation = loading(source.where, partial(_generation_config, source.path))
                loading(source.where, partial(check_end_tokens, generation, model, source.path))
                end_tokens(tokenizer, generation, config.spec.sampling)
        except InvalidJob as error:
            problems |= {str(problem): problem for problem in error.problems}
    return list(problems.values())


def _models(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[ModelSource, int, PreTrainedTokenizerBase]]:
    """Local models with the longest sequence that each gets, and the tokenizer of its tokens."""
    spec = config.spec
    for used in spec.graph.trained:
        source = trained_source(config, used.field, tokenizer)
        if _is_local(source):
            yield source, longest_update(spec) if used.field == "policy" else longest(spec), tokenizer
    for role in roles_of(spec):
        if role is Role.REWARD:
            for source in filter(_is_local, reward_sources(spec)):
                yield source, longest(spec), load_own_tokenizer(source)
        if role.row.model is None or role is Role.REWARD:
            continue
        for view in views_of(spec, role):
            source = frozen_source(config.model_copy(update={"spec": view}), role)
            if _is_local(source):
                yield source, longest(spec), tokenizer


def _is_local(source: ModelSource) -> bool:
    return Path(source.path).is_dir()


def _generation_config(path: str) -> GenerationConfig | None:
    named = (Path(path) / GENERATION_CONFIG).is_file()
    return GenerationConfig.from_pretrained(path) if named else None
