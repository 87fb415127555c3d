"""`spec.evaluation`: sets of held-out rows, and how responses to them are sampled."""

from typing import Annotated, NamedTuple

from pydantic import Field

from ..field_types import HOTTEST, Frozen, ImportPath, Positive, PositiveFloat, RewardName

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
    """`(prompts, responses, rows) -> list of float`; its mean is the metric. Required if responses are sampled, but
    with `spec.environment`: then its rewards are the scores without a function. Otherwise neither it nor any field
    about sampling may be set."""
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
