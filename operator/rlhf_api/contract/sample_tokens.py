"""Tokens of a step's samples with their values: `tokens.json` of the step's checkpoint, written by the trainer for
readers that parse nothing but JSON."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

FILE = "tokens.json"
TOKENS = "response_tokens"
"""Column of an episode with the tokens of each response."""
VALUES = {
    "logprob": "sampled_logprobs",
    "old": "logprobs",
    "reference": "reference_logprobs",
    "entropy": "entropies",
    "advantage": "advantages",
    "value": "values",
    "return": "returns",
    "weight": "importance_weights",
    "score": "token_scores",
    "mask": "sampled",
    "version": "weight_versions",
}
"""Of each token: its key for readers, and its column in an episode, which not every job has."""


class ResponseTokens(BaseModel):
    """One response of an episode; T tokens."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    prompt_id: str
    texts: tuple[str, ...]
    """[T]: the text that each token adds; that of a special token is its name."""
    columns: Mapping[str, tuple[bool | int | float | None, ...]]
    """[T] each: TOKENS, and those of VALUES that the job has, by their names in an episode."""


class StepTokens(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
    responses: tuple[ResponseTokens, ...]
    """In the order of the step's samples, the first ones."""
