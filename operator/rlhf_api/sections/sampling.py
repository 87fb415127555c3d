"""`spec.sampling`: how responses are sampled."""

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator
from pydantic.alias_generators import to_camel

from ..field_types import COLDEST, HOTTEST, Frozen, Positive, former

MOST_KEPT = 256
"""The highest `topK` whose sampling mask is replayed."""


StopString = Annotated[str, Field(min_length=1, max_length=256)]
Text = Annotated[str, Field(min_length=1)]


class StructuredOutputs(Frozen):
    """Constraint on the text of every response, or of every turn; exactly one of these, as vLLM's structured outputs
    take it."""

    regex: Text | None = None
    """A regular expression that matches all of it."""
    json_schema: dict[str, JsonValue] | None = None
    """The schema of the JSON that it is; {} is any."""
    choice: tuple[Text, ...] | None = Field(None, min_length=1)
    """It is one of these."""
    grammar: Text | None = None
    """A context-free grammar, in EBNF or Lark's form, whose language it is of."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        names = [to_camel(name) for name in type(self).model_fields if getattr(self, name) is not None]
        if len(names) != 1:
            given = " and ".join(names) or "none"
            raise ValueError(f"needs exactly one of regex, jsonSchema, choice and grammar; got {given}")
        return self


class Thinking(Frozen):
    """Most tokens of the thought that a response begins with. Tokens that close a longer one are not the policy's, and
    not trained on."""

    budget: Positive
    """Tokens, of those of `sampling.maxNewTokens`."""
    end: Text = "</think>"
    """Text by which the policy ends a thought."""
    closing: Text | None = None
    """What a thought gets at the budget, with `end` in it; `end` alone unless given."""

    @property
    def closing_text(self) -> str:
        return self.end if self.closing is None else self.closing


class Sampling(Frozen):
    """Sampling of responses."""

    temperature: float = Field(1.0, ge=COLDEST, le=HOTTEST)
    """Sampling temperature; log-probabilities of policy and reference are computed at it too."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 switches it off. Training applies the same mask only if topK is set too."""
    top_k: int = Field(-1, ge=-1)
    """Top-k sampling; -1 or 0 switches it off. Up to 256, training applies the same mask."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Leaves out tokens less likely than minP times the likeliest. Training applies the same mask only if topK is
    set too."""
    min_new_tokens: int = Field(0, ge=0)
    """Minimum response length in tokens, before which the end token is banned. Training applies the same mask only
    if topK is set too."""
    max_new_tokens: Positive = 256
    response_end_id: int | None = Field(None, ge=0, validation_alias=former("responseEndId", "answerEndId"))
    """An additional end token, besides those of the tokenizer and of the policy's generation_config.json."""
    stop: tuple[StopString, ...] = Field((), max_length=16)
    """Stop strings: a response ends with the token that completes one, and its text ends before it."""
    structured_outputs: StructuredOutputs | None = None
    """Constraint on responses, by their tokens. Training applies the same mask only if topK is set too."""
    thinking: Thinking | None = None
    responses_per_prompt: Positive = Field(
        1, validation_alias=former("responsesPerPrompt", "answersPerPrompt")
    )

    @property
    def mask_size(self) -> int:
        """Maximum size of a sampling mask that training replays; else 0."""
        return self.top_k if 0 < self.top_k <= MOST_KEPT else 0

    @property
    def cut(self) -> bool:
        """True if tokens are left out, or the end token is banned, and training does not replay that."""
        masked = self.top_p < 1 or self.min_p > 0 or self.top_k > 0 or self.min_new_tokens > 0
        return (masked or self.structured_outputs is not None) and not self.mask_size
