"""Rules of `spec.model.architectures`: the ends of class names, which say what a class is for; and what vLLM needs."""

from collections.abc import Iterator

from ..contract.run import roles_of
from ..errors.problem import Problem
from ..roles import Role
from ..sections.model import BASE, CAUSAL, KINDS, kind_of
from ..spec import Spec


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
