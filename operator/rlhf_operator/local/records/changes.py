"""Fields in which a job differs from the run that it resumes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from rlhf_api.errors.problem import Problem, show
from rlhf_api.host.redaction import masked
from rlhf_api.spec import Spec

_FIXED = re.compile(r"spec\.(algorithm|seed|model)\b")
"""Fields that identify a run, and are the same for all of its steps."""
_TASK = re.compile(
    r"spec\.data\.(?!promptsPerStep$)|spec\.workspace\.files|spec\.reward\."
    r"((modelWeight|fineGrained|stepScores|bias|scale|clip)\b"
    r"|models($|\[\d+\]($|\.))"
    r"|functions($|\[\d+\]($|\.(name|function|url|program|weight|failureScore)\b)))"
)
"""Fields of what the policy learns, and from what: later steps of the run would have another goal than earlier ones."""


class Change(NamedTuple):
    """One field: its path, its value in the run so far, and the job's."""

    field: str
    old: JsonValue
    new: JsonValue

    def __str__(self) -> str:
        return f"{self.field}: {show(self.old)} -> {show(self.new)}"


def changed_fields(before: Spec, after: Spec) -> list[Change]:
    """All fields with different values, in the order of the manifest; values that look like secrets are masked."""
    old, new = (masked(spec.model_dump(mode="json", by_alias=True)) for spec in (before, after))
    return list(changed_values("spec", old, new))


def refused_changes(changes: Sequence[Change], run: str, *, accept: bool) -> list[Problem]:
    """A problem for each change that a resumed run cannot make, or only if the user accepts it."""
    fixed = f"the run in {run} has {{}}, which --resume cannot change; got {{}}"
    task = f"the run in {run} has {{}}, got {{}}: its later steps would learn something else than its earlier ones; "
    task += "add --accept-changes to go on all the same, or give another --workdir"
    refused = [(_FIXED, fixed), *(() if accept else ((_TASK, task),))]
    return [
        Problem(change.field, message.format(show(change.old), show(change.new)))
        for change in changes
        for pattern, message in refused
        if pattern.match(change.field)
    ]


def changed_values(field: str, old: JsonValue, new: JsonValue) -> Iterator[Change]:
    """All differences between two JSON values, of which `field` is the path."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in {**old, **new}:
            yield from changed_values(f"{field}.{key}", old.get(key), new.get(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, values in enumerate(zip(old, new, strict=True)):
            yield from changed_values(f"{field}[{index}]", *values)
    else:
        yield Change(field, old, new)
