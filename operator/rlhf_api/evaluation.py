"""`spec.evaluation`: sets of held-out rows, and how many responses to each prompt are judged."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from .base import PENALTIES, Frozen, ImportPath, NonNegativeFloat, Positive, PositiveFloat, RewardName
from .problems import Problem, show

if TYPE_CHECKING:
    from .spec import Spec

UNNAMED = "held_out"
"""Name of the set that `evaluation.data` is."""


class Penalties(NamedTuple):
    """Of logits, as vLLM has them: of a token that stands in prompt or response, divided by `repetition` where positive
    and else multiplied; then less `frequency` for each time that it stands in the response, and once `presence`."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


NO_PENALTIES = Penalties()
Penalty = Annotated[float, Field(ge=-2, le=2)]


class EvaluationSet(Frozen):
    """Held-out rows with figures of their own."""

    name: RewardName
    """Its name in `evaluation.jsonl`."""
    data: tuple[str, ...] = Field(min_length=1)
    """Files of rows of the kind that the algorithm trains on."""
    samples: Positive | None = None
    """In place of `evaluation.samples`."""
    temperature: NonNegativeFloat | None = None
    """In place of `evaluation.temperature`."""


class Evaluation(Frozen):
    """Responses to held-out prompts, judged by a function that training never sees; for algorithms that train on given
    responses, their loss on held-out ones."""

    data: tuple[str, ...] | None = Field(None, min_length=1)
    """Files of rows of the kind that the algorithm trains on."""
    sets: tuple[EvaluationSet, ...] | None = Field(None, min_length=1, max_length=64)
    """Several, each with a name, in place of `data`."""
    function: ImportPath | None = None
    """`(prompts, responses, rows) -> list of float`; its mean is the figure. Required where responses are sampled;
    without them neither it nor any field about sampling may be set."""
    every_steps: Positive = 10
    samples: Positive = 1
    """Responses to each prompt; with several the best of them is reported too."""
    temperature: NonNegativeFloat | None = None
    """0: the likeliest token each time (greedy). `sampling.temperature` unless given."""
    repetition_penalty: PositiveFloat = 1.0
    """Above 1 tokens of prompt and response are less likely to come again."""
    presence_penalty: Penalty = 0.0
    """Taken off the logits of tokens that are in the response."""
    frequency_penalty: Penalty = 0.0
    """The same, once for each time that they are there."""

    @property
    def penalties(self) -> Penalties:
        return Penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty)


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


def problems(spec: "Spec", *, sampled: bool) -> Iterator[Problem]:
    """Rules above that the section breaks; `sampled`: the algorithm samples responses."""
    section = spec.evaluation
    if section is None:
        return
    if sampled and section.function is None:
        yield Problem("spec.evaluation.function", "is required and missing: it judges the responses")
    if not sampled:
        yield from _of_responses("spec.evaluation", section, spec.algorithm)
        for i, found in enumerate(section.sets or ()):
            yield from _of_responses(f"spec.evaluation.sets[{i}]", found, spec.algorithm)
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


def _of_responses(where: str, section: Evaluation | EvaluationSet, algorithm: str) -> Iterator[Problem]:
    """Fields about sampled responses, for an algorithm that samples none."""
    for name in ("function", "samples", "temperature", *PENALTIES):
        if name in section.model_fields_set and (value := getattr(section, name)) is not None:
            message = f"is of sampled responses, and {algorithm} is judged by its loss; remove it"
            yield Problem(f"{where}.{name}", f"{message}; got {show(value)}")
