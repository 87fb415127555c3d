"""`spec.evaluation`: sets of held-out rows, and how responses to them are sampled."""

from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from ..field_types import HOTTEST, Frozen, ImportPath, Positive, PositiveFloat, RewardName
from .reward import ScoreFunction

UNNAMED = "held_out"
"""Name of the set in `evaluation.data`."""
ONLY_METRIC = "evaluation"
"""Name of the metric of `evaluation.function` where one is needed: its figures have none."""


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


class EvaluationMetric(ScoreFunction):
    """The mean of the scores that a function, a service, a program or a reward model gives held-out responses."""

    model: RewardName | None = None
    """Name of one of `reward.models`, or `model` for `model.reward`; its scores count before their weight."""

    @classmethod
    def kinds(cls) -> tuple[str, ...]:
        return (*super().kinds(), "model")

    @model_validator(mode="after")
    def _asks_its_model_as_training_does(self) -> Self:
        for name in ("failure_score", "timeout_seconds", "retries", "concurrency"):
            if self.model is not None and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{to_camel(name)} does not apply to model, which is asked as spec.reward says; remove it"
                )
        return self


class Evaluation(Frozen):
    """Responses to held-out prompts, judged by what training does not use; where it is on given responses, the loss
    on held-out ones."""

    data: tuple[str, ...] | None = Field(None, min_length=1)
    """Files of rows of the kind that the algorithm trains on."""
    sets: tuple[EvaluationSet, ...] | None = Field(None, min_length=1, max_length=64)
    """Several named sets, instead of `data`."""
    function: ImportPath | None = None
    """`(prompts, responses, rows) -> list of float`; its mean is the metric. It or `metrics` is required if
    responses are sampled, unless an environment's rewards are the scores."""
    metrics: tuple[EvaluationMetric, ...] | None = Field(None, min_length=1, max_length=16)
    """Named metrics, instead of `function`. The first one ranks checkpoints."""
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

    @property
    def placed_metrics(self) -> dict[str, EvaluationMetric]:
        """The metrics by their places in the manifest, that of `function` among them; none where an environment's
        rewards or a loss judge."""
        if self.metrics is not None:
            return {f"spec.evaluation.metrics[{i}]": metric for i, metric in enumerate(self.metrics)}
        if self.function is None:
            return {}
        return {"spec.evaluation": EvaluationMetric(name=ONLY_METRIC, function=self.function)}
