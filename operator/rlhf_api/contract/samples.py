"""A response that a run keeps for people: a line of `samples.jsonl`, written by the trainer, read by every face."""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Turn(BaseModel):
    """Text of the policy in a turn of an episode, or of its environment's reply; without an environment, text that the
    policy was given within its response, such as the closing of its thought."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    by: Literal["policy", "environment", "given"]
    text: str
    reward: float | None = None
    """The reward of the policy's turn, where it has one."""


class Sample(BaseModel):
    """Keys of other releases are ignored. Lengths are in tokens; `score` and `advantage` are None where there is
    none."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    step: int
    """The step that trained on it."""
    prompt_id: str
    """Epoch and row of its prompt."""
    prompt: str
    response: str
    score: float | None = None
    """Its total reward."""
    rewards: Mapping[str, float | None] = {}
    """Each reward's score, by name, before its weight; None where that one failed. Empty where it was not recorded."""
    advantage: float | None = None
    """The mean over its tokens."""
    finished: bool = True
    """False if the length limit cut it off."""
    weight_version: int
    """Of the weights that sampled its last token."""
    prompt_length: int
    response_length: int
    """Of the tokens that were sampled."""
    turns: tuple[Turn, ...] = ()
    """Of an episode: its response, part by part."""
