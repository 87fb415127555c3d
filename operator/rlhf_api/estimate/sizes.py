"""Sizes of a job's models, as far as known before any is loaded; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ..field_types import ModelField
from ..roles import Role
from ..sections.model import Model
from ..spec import Spec
from .parameters import Shape, count_parameters, shape_of

LOADED: tuple[ModelField, ...] = ("policy", "critic", *(role.row.model for role in Role if role.row.model))
"""Fields of `spec.model` whose models some role loads."""


@dataclass(frozen=True)
class Size:
    """Parameters of a model, and its widths if known; `guessed`: unknown, assumed to be as large as the policy;
    `active`: parameters that each token passes, without the other experts of a mixture, all unless known."""

    parameters: float
    shape: Shape | None = None
    guessed: bool = False
    active: float | None = None

    @property
    def passed(self) -> float:
        """Parameters that each token passes."""
        return self.parameters if self.active is None else self.active


FileSizes = Mapping[str, Size]
"""Sizes found in files by a host, by field of `spec.model`."""
NOTHING: FileSizes = MappingProxyType({})


@dataclass(frozen=True)
class Sizes:
    """Sizes of the models that a job's roles hold."""

    policy: Size | None
    critic: Size | None
    frozen: Mapping[Role, Size | None]

    @classmethod
    def of(cls, spec: Spec, file_sizes: FileSizes) -> "Sizes":
        """Sizes found in files, else those that the manifest gives."""
        model = spec.model
        policy = file_sizes.get("policy") or (Size(model.parameters) if model.parameters else _created(model))

        def size(field: ModelField) -> Size | None:
            name, _ = model.source(field) or ("policy", "")
            if name == "policy":
                return policy
            return file_sizes.get(name) or (replace(policy, guessed=True) if policy else None)

        frozen = {role: size(role.row.model) for role in Role if role.row.model and _holds_model(spec, role)}
        return cls(policy, size("critic"), frozen)

    @property
    def certain(self) -> "Sizes":
        """These sizes without the guessed ones."""
        return Sizes(
            _certain(self.policy),
            _certain(self.critic),
            {role: _certain(size) for role, size in self.frozen.items()},
        )


def _holds_model(spec: Spec, role: Role) -> bool:
    """True if the role's processes hold a model; the reward role may have only functions."""
    if role is Role.REWARD and spec.reward.model_weight == 0:
        return False
    return role.row.or_policy or getattr(spec.model, role.row.model or "") is not None


def _certain(size: Size | None) -> Size | None:
    return None if size and size.guessed else size


def _created(model: Model) -> Size | None:
    if model.create is None:
        return None
    fields = {"vocab_size": model.create.tokenizer.vocab_size, **model.create.config}
    config = {**fields, "model_type": model.create.model_type}
    parameters = count_parameters(config)
    return Size(parameters, shape_of(config)) if parameters else None
