"""How large the models of a job are, as far as it is known before anything is loaded; pure."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from .parameters import count_parameters
from .spec import Model, Spec

Found = Mapping[str, float]
"""Numbers of parameters that a host found in files, under the fields of `spec.model` that name them."""
NOTHING: Found = MappingProxyType({})


@dataclass(frozen=True)
class Size:
    """Parameters of a model; `guessed` where nobody knows, and it is taken to be as large as the policy."""

    parameters: float
    guessed: bool = False


@dataclass(frozen=True)
class Sizes:
    """The models that a job's roles hold."""

    policy: Size | None
    critic: Size | None
    reward: Size | None
    reference: Size | None

    @classmethod
    def of(cls, spec: Spec, found: Found) -> "Sizes":
        """From what was found in files, else from what the manifest says."""
        model = spec.model
        parameters = found.get("policy") or model.parameters or _created(model)
        policy = Size(parameters) if parameters else None

        def size(field: str) -> Size | None:
            if getattr(model, field) is None:
                return policy
            if field in found:
                return Size(found[field])
            return Size(policy.parameters, guessed=True) if policy else None

        scored = model.reward is not None and spec.reward.model_weight != 0
        return cls(
            policy=policy,
            critic=size("critic" if model.critic is not None else "reward"),
            reward=size("reward") if scored else None,
            reference=size("reference"),
        )

    @property
    def certain(self) -> "Sizes":
        """Without what is guessed."""
        sizes = {field.name: getattr(self, field.name) for field in fields(self)}
        return Sizes(**{name: None if size and size.guessed else size for name, size in sizes.items()})


def _created(model: Model) -> int | None:
    if model.create is None:
        return None
    fields = {"vocab_size": model.create.tokenizer.vocab_size, **model.create.config}
    return count_parameters({**fields, "model_type": model.create.model_type})
