"""The rules of `rules` that CEL can express, for API servers from 1.25 on: they reject at admission what the operator
would fail.

Each rule is part of a model's schema, with that model's object as `self`. Every rule is also in `rules`, so that
nothing is lost on a server without CEL. The schema sets no defaults, so optional fields are tested by `has()`. A server
refuses rules whose worst-case cost is too high, and assumes lists as long as a request allows: so everything in the
schema is bounded (`size_limits`).
"""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from ..contract.status import CORRECTABLE
from ..rules.check import CHANGEABLE, MANAGER_STAYS
from ..sections.roles import Generator
from ..spec import Spec
from .cel_pods import PODS
from .cel_sections import SECTIONS, Rule


def _same(key: str) -> str:
    """CEL: an optional field is unchanged. Not written as `self.?key`, whose worst case a server takes to be
    unbounded.
    """
    return f"(has(self.{key}) ? has(oldSelf.{key}) && self.{key} == oldSelf.{key} : !has(oldSelf.{key}))"


def _unchanged() -> Iterator[str]:
    """CEL: each section is unchanged, except for those that may change while a job runs."""
    for name, field in Spec.model_fields.items():
        key = f"spec.{field.alias or name}"
        if name == "generator":
            # Always present, because its replicas have a default.
            inner = Generator.model_fields.items()
            yield from (_same(f"{key}.{f.alias or n}") for n, f in inner if n != "replicas")
        elif name not in (*CHANGEABLE, "managed_by"):
            yield f"self.{key} == oldSelf.{key}" if field.is_required() else _same(key)


# The phase is not enough: a job that ran and failed is immutable, but one that was refused may be corrected.
_MAY_CHANGE = (
    "has(oldSelf.spec.suspend) && oldSelf.spec.suspend || has(oldSelf.status) && has(oldSelf.status.conditions) && "
    f"oldSelf.status.conditions.exists(c, c.type == 'Failed' && c.reason in {[*CORRECTABLE]})"
)
_JOB = (
    # One rule for all sections: one rule each would take a tenth of the whole definition. A server evaluates it at each
    # write of a status too, where the first comparison is enough and takes half of what the others do.
    Rule(
        f"self.spec == oldSelf.spec || {_MAY_CHANGE} || {' && '.join(_unchanged())}",
        "while a job runs, its spec can change in "
        + ", ".join(["generator.replicas", *map(to_camel, CHANGEABLE)])
        + " alone; suspend it first (spec.suspend: true)",
    ),
    Rule(_same("spec.managedBy"), f"managedBy {MANAGER_STAYS}"),
)

RULES: dict[str, tuple[Rule, ...]] = {"RLHFJob": _JOB, **SECTIONS, **PODS}
"""Rules by model name; a job's are of its changes."""
