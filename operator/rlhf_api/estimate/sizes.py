"""Sizes of a job's models, as far as known before any is loaded; pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ..algorithms import teachers_of
from ..contract.teachers import teacher_field
from ..field_types import ModelField
from ..roles import Role
from ..sections.model import Model
from ..spec import Spec
from .parameters import count_parameters, shape_of
from .shapes import Shape, frozen_parameters

LOADED: tuple[ModelField, ...] = ("policy", "critic", *(role.row.model for role in Role if role.row.model))
"""Fields of `spec.model` whose models some role loads."""


@dataclass(frozen=True)
class Size:
    """Parameters of a model, and its widths if known; `guessed`: unknown, assumed to be as large as the policy;
    `active`: parameters that each token passes, without the other experts of a mixture, all unless known; `choices`: of
    such experts in all layers, 0 unless known; `frozen`: those of the policy's files that the job freezes, None if
    these name none."""

    parameters: float
    shape: Shape | None = None
    guessed: bool = False
    active: float | None = None
    choices: int = 0
    frozen: float | None = None

    @property
    def passed(self) -> float:
        """Parameters that each token passes."""
        return self.parameters if self.active is None else self.active


FileSizes = Mapping[str, Size]
"""Sizes found in files by a host, by field of `spec.model`, or the whole field of any other model."""
NOTHING: FileSizes = MappingProxyType({})


@dataclass(frozen=True)
class Sizes:
    """Sizes of the models that a job's roles hold."""

    policy: Size | None
    critic: Size | None
    frozen: Mapping[Role, Size | None]
    """By role; of several teachers the largest, of several reward models their sum."""
    teachers: Mapping[str, Size | None] = field(default_factory=dict)
    """By the names of teachers."""

    @classmethod
    def of(cls, spec: Spec, file_sizes: FileSizes) -> "Sizes":
        """Sizes found in files, else those that the manifest gives."""
        model = spec.model
        policy = file_sizes.get("policy") or (Size(model.parameters) if model.parameters else _created(model))

        def known(name: str) -> Size | None:
            return file_sizes.get(name) or (replace(policy, guessed=True) if policy else None)

        teachers = {each.name: known(f"{teacher_field(each)}.model") for each in teachers_of(spec)}

        def size(field: ModelField) -> Size | None:
            if field == Role.REFERENCE.row.model and teachers:
                return max(teachers.values(), key=lambda each: each.parameters if each else 0.0)
            if field == Role.REWARD.row.model:
                names = [model.where.removeprefix("spec.model.") for model in spec.reward_models]
                return _together([known(name) for name in names])
            name, _ = spec.source(field) or ("policy", "")
            return policy if name == "policy" else known(name)

        frozen = {role: size(role.row.model) for role in Role if role.row.model and _holds_model(spec, role)}
        return cls(policy, size("critic"), frozen, teachers)

    def of_view(self, view: Spec) -> "Sizes":
        """The sizes for the processes that see the job so; see `views_of`."""
        names = [teacher.name for teacher in teachers_of(view)]
        if len(names) != 1:
            return self
        return replace(self, frozen={**self.frozen, Role.REFERENCE: self.teachers[names[0]]})

    @property
    def certain(self) -> "Sizes":
        """These sizes without the guessed ones."""
        return Sizes(
            _certain(self.policy),
            _certain(self.critic),
            {role: _certain(size) for role, size in self.frozen.items()},
            {name: _certain(size) for name, size in self.teachers.items()},
        )


def _holds_model(spec: Spec, role: Role) -> bool:
    """True if the role's processes hold a model; the reward role may have only functions."""
    if role is Role.REWARD:
        return bool(spec.reward_models)
    return role.row.or_policy or getattr(spec.model, role.row.model or "") is not None


def _together(sizes: Sequence[Size | None]) -> Size | None:
    """The size of models that one process holds, each of which reads every token; None if one is not known."""
    there = [size for size in sizes if size is not None]
    if len(there) < len(sizes):
        return None
    if len(there) == 1:
        return there[0]
    return Size(
        sum(size.parameters for size in there),
        guessed=any(size.guessed for size in there),
        active=sum(size.passed for size in there),
    )


def frozen_part(spec: Spec, size: Size) -> float:
    """Parameters of the policy that no update changes, by the names in its files, else by its widths; 0 where neither
    are known."""
    if size.frozen is not None:
        return size.frozen
    return frozen_parameters(spec.model.is_frozen, size.shape) if spec.model.freeze and size.shape else 0.0


def _certain(size: Size | None) -> Size | None:
    return None if size and size.guessed else size


def _created(model: Model) -> Size | None:
    if model.create is None:
        return None
    fields = {"vocab_size": model.create.tokenizer.vocab_size, **model.create.config}
    config = {**fields, "model_type": model.create.model_type}
    parameters, shape = count_parameters(config), shape_of(config)
    if not parameters:
        return None
    if shape is None or shape.mixture is None:
        return Size(parameters, shape)
    mixture = shape.mixture
    idle = len(mixture.layers) * (mixture.experts - mixture.chosen) * shape.expert
    return Size(parameters, shape, active=parameters - idle, choices=len(mixture.layers) * mixture.chosen)
