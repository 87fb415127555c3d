"""Rules of `spec.model.architectures`: the ends of class names, which say what a class is for; and what vLLM needs."""

from collections.abc import Iterator

from .problems import Problem
from .roles import Role
from .run import roles_of
from .spec import Spec

BASE, CAUSAL = "Model", "ForCausalLM"
KINDS = (BASE, CAUSAL, "ForSequenceClassification", "ForTokenClassification")
"""Ends of Transformers' own class names: the model without a head, policy and reference, reward model, critic."""


def kind_of(name: str) -> str | None:
    """The kind of the class `module:name`; None for a name with another end."""
    return next((kind for kind in KINDS if name.endswith(kind)), None)


def problems(spec: Spec) -> Iterator[Problem]:
    names = spec.model.architectures
    for i, name in enumerate(names):
        if kind_of(name) is None:
            ends = ", ".join(f"...{kind}" for kind in KINDS)
            yield Problem(
                f"spec.model.architectures[{i}]", f"must name a class by its kind, {ends}; got {name!r}"
            )
    kinds = {kind_of(name) for name in names}
    if CAUSAL in kinds and BASE not in kinds and Role.GENERATOR in roles_of(spec):
        yield Problem(
            "spec.model.architectures",
            "vLLM makes the model without its head, so name that class too, ...Model; or let the trainer generate: "
            f"spec.generator.sharedWithTrainer: true; got {', '.join(names)}",
        )
