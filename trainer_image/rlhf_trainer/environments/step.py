"""Result of an environment's `step`."""

from typing import Any, NamedTuple


class Step(NamedTuple):
    """The environment's reply to one turn of the model; a plain tuple of the same three is as good.

    `messages`: what the model reads next, in the OpenAI format, or the text of a user's message; not read where the
    episode is `done`. `reward`: a finite number, of this turn; an episode's reward is the sum of its turns'.
    """

    messages: list[dict[str, Any]] | str = ""
    reward: float = 0.0
    done: bool = False


class AgentStep(NamedTuple):
    """As `Step`, of an agent; on a `branch` the messages are a whole conversation in place of the one so far, and
    `tools` are those of it."""

    messages: list[dict[str, Any]]
    reward: float = 0.0
    done: bool = False
    branch: bool = False
    tools: list[dict[str, Any]] | None = None
