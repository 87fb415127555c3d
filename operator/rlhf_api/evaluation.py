"""`spec.evaluation`: sets of held-out rows, and the number of responses to each prompt."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field

from .base import COLDEST, HOTTEST, PENALTIES, Frozen, ImportPath, Positive, PositiveFloat, RewardName
from .problems import Problem, show

if TYPE_CHECKING:
    from .spec import Spec

UNNAMED = "held_out"
"""Name of the set in `evaluation.data`."""


class Penalties(NamedTuple):
    """Penalties on logits, with vLLM's semantics: the logit of a token in the prompt or response is divided by
    `repetition` if positive, else multiplied; then minus `frequency` for each occurrence in the response, and minus
    `presence` once."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


NO_PENALTIES = Penalties()
Penalty = Annotated[float, Field(ge=-2, le=2)]
Temperature = Annotated[float, Field(ge=0, le=HOTTEST)]


class EvaluationSet(Frozen):
    """Held-out rows with metrics of their own."""

    name: RewardName
    """Name of the set in `evaluation.jsonl`."""
    data: tuple[str, ...] = Field(min_length=1)
    """Files of rows of the kind that the algorithm trains on."""
    samples: Positive | None = None
    """Overrides `evaluation.samples`."""
    temperature: Temperature | None = None
    """Overrides `evaluation.temperature`."""


class Evaluation(Frozen):
    """Responses to held-out prompts, judged by a function not used in training; for algorithms that train on given
    responses, the loss on held-out ones."""

    data: tuple[str, ...] | None = Field(None, min_length=1)
    """Files of rows of the kind that the algorithm trains on."""
    sets: tuple[EvaluationSet, ...] | None = Field(None, min_length=1, max_length=64)
    """Several named sets, instead of `data`."""
    function: ImportPath | None = None
    """`(prompts, responses, rows) -> list of float`; its mean is the metric. Required if responses are sampled;
    otherwise neither it nor any field about sampling may be set."""
    every_steps: Positive = 10
    samples: Positive = 1
    """Responses to each prompt; with several, best-of-k is reported too."""
    temperature: Temperature | None = None
    """Sampling temperature; 0: greedy. `sampling.temperature` unless given."""
    repetition_penalty: PositiveFloat = 1.0
    """Repetition penalty; above 1, tokens of prompt and response become less likely."""
    presence_penalty: Penalty = 0.0
    """Subtracted from the logits of tokens that occur in the response."""
    frequency_penalty: Penalty = 0.0
    """Subtracted from the logits once for each occurrence in the response."""

    @property
    def penalties(self) -> Penalties:
        return Penalties(self.repetition_penalty, self.presence_penalty, self.frequency_penalty)


def evaluation_sets(spec: "Spec") -> tuple[EvaluationSet, ...]:
    """The sets of `spec.evaluation`, with their number of samples and temperature resolved; empty without
    evaluation.
    """
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
    """Problems of the section; `sampled`: the algorithm samples responses."""
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
        if found.temperature is not None and 0 < found.temperature < COLDEST:
            message = f"must be 0, which is greedy, or at least {COLDEST:g}, the lowest that vLLM samples at"
            yield Problem(f"{where}.temperature", f"{message}; got {found.temperature:g}")


def _of_responses(where: str, section: Evaluation | EvaluationSet, algorithm: str) -> Iterator[Problem]:
    """Problems of fields about sampled responses, for an algorithm that samples none."""
    for name in ("function", "samples", "temperature", *PENALTIES):
        if name in section.model_fields_set and (value := getattr(section, name)) is not None:
            message = (
                f"applies only to sampled responses, and {algorithm} is evaluated by its loss; remove it"
            )
            yield Problem(f"{where}.{name}", f"{message}; got {show(value)}")
