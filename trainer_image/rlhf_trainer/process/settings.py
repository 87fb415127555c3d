"""Paths and lengths that roles derive from the manifest. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from rlhf_api.contract.run import RunConfig
from rlhf_api.contract.teachers import model_field
from rlhf_api.field_types import ModelField
from rlhf_api.roles import Role
from rlhf_api.spec import Spec


@dataclass(frozen=True)
class ModelSource:
    """A path or hub name, and the manifest's field that names it."""

    where: str
    path: str


def model_source(config: RunConfig, field: ModelField | Literal["tokenizer"]) -> ModelSource:
    """Resolves a field of `spec.model`: see `CommonSpec.source`; else the model made in the work directory."""
    source = config.spec.source(field)
    if source is None:
        return ModelSource("spec.model.create", f"{config.workdir}/initial")
    name, path = source
    return ModelSource(model_field(config.spec, name), path)


def frozen_source(config: RunConfig, role: Role) -> ModelSource:
    """The frozen model of a role."""
    assert role.row.model is not None, f"the {role.value} role has no frozen model"
    return model_source(config, role.row.model)


def reward_sources(spec: Spec) -> list[ModelSource]:
    """The reward models that the reward role loads, in the order of `CommonSpec.reward_models`."""
    return [ModelSource(model.where, model.path) for model in spec.reward_models]


def longest(spec: Spec) -> int:
    """Maximum number of tokens of a sequence in this job."""
    answer = spec.longest_response if spec.graph.generates else spec.data.max_response_length
    return spec.data.max_prompt_length + answer


def longest_update(spec: Spec) -> int:
    """As `longest`, with the pretraining text that is mixed into the policy's updates."""
    text = spec.data.max_prompt_length + spec.data.max_response_length if spec.pretraining else 0
    return max(longest(spec), text)
