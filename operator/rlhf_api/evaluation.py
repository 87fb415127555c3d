"""`spec.evaluation`: sets of held-out prompts, and how many responses to each are judged."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from .base import Frozen, ImportPath, NonNegativeFloat, Positive, RewardName
from .problems import Problem

if TYPE_CHECKING:
    from .spec import Spec

UNNAMED = "held_out"
"""Name of the set that `evaluation.data` is."""


class EvaluationSet(Frozen):
    """Held-out prompts with figures of their own."""

    name: RewardName
    """Its name in `evaluation.jsonl`."""
    data: tuple[str, ...] = Field(min_length=1)
    """Files of prompt rows."""
    samples: Positive | None = None
    """In place of `evaluation.samples`."""
    temperature: NonNegativeFloat | None = None
    """In place of `evaluation.temperature`."""


class Evaluation(Frozen):
    """Responses to held-out prompts, judged by a function that training never sees."""

    data: tuple[str, ...] | None = Field(None, min_length=1)
    """Files of prompt rows."""
    sets: tuple[EvaluationSet, ...] | None = Field(None, min_length=1, max_length=64)
    """Several, each with a name, in place of `data`."""
    function: ImportPath
    """`(prompts, responses, rows) -> list of float`; its mean is the figure."""
    every_steps: Positive = 10
    samples: Positive = 1
    """Responses to each prompt; with several the best of them is reported too."""
    temperature: NonNegativeFloat | None = None
    """0: the likeliest token each time (greedy). `sampling.temperature` unless given."""


def evaluation_sets(spec: "Spec") -> tuple[EvaluationSet, ...]:
    """The sets of `spec.evaluation`, each with its own number of samples and temperature; none without evaluation."""
    section = spec.evaluation
    if section is None:
        return ()
    given = section.sets or (EvaluationSet(name=UNNAMED, data=section.data or ()),)
    usual = spec.sampling.temperature if section.temperature is None else section.temperature
    return tuple(
        found.model_copy(
            update={
                "samples": found.samples or section.samples,
                "temperature": usual if found.temperature is None else found.temperature,
            }
        )
        for found in given
    )


def problems(spec: "Spec") -> Iterator[Problem]:
    """Rules above that the sets break."""
    section = spec.evaluation
    if section is None:
        return
    if (section.data is None) == (section.sets is None):
        seen = "neither is" if section.data is None else "both are"
        message = f"needs exactly one of data (files) and sets (objects with name and data); {seen} set"
        yield Problem("spec.evaluation", message)
        return
    names = list[str]()
    for i, found in enumerate(evaluation_sets(spec)):
        where = f"spec.evaluation.sets[{i}]" if section.sets else "spec.evaluation"
        if found.name in names:
            message = f"two sets have this name; give this one another; got {found.name!r}"
            yield Problem(f"{where}.name", message)
        names.append(found.name)
        if found.temperature == 0 and found.samples != 1:
            message = f"at temperature 0 all responses to a prompt are the same; use 1; got {found.samples}"
            yield Problem(f"{where}.samples", message)
