"""Formats episodes for people; pure."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from ..data.text import context, continued_text
from ..environments.record import turns_of
from ..environments.tool_calls import parse_calls
from ..rollout.partial_rollout import PartialRollout, Response
from ..tensors.records import Prompt

DIM, GREEN, RESET = "\033[2m", "\033[32m", "\033[0m"
_MOST = 300
"""Characters of a turn or reply that a line shows, from its start and its end."""


class _Part(NamedTuple):
    """Consecutive tokens of an episode that were all sampled, or all of the environment or the prompt; `reward`: of the
    turn, None if it has none or the episode has not."""

    name: str
    tokens: Sequence[int]
    sampled: bool
    reward: float | None = None

    @property
    def kind(self) -> str:
        return "sampled" if self.sampled else "context"


def episode_lines(
    work: PartialRollout, tokenizer: PreTrainedTokenizerBase, seconds: float, *, tokens: bool, colour: bool
) -> Iterator[str]:
    """Lines about an episode's opening, its turns and replies, and how it ended; `tokens`: a line of each token too."""
    (response,) = work.responses
    before: tuple[int, ...] = ()
    for part in _parts(work.prompt, response):
        text = continued_text(tokenizer, before, part.tokens, skip_special_tokens=False)
        line = f"  {part.name:8} {len(part.tokens):5} {part.kind}  {_short(text)}"
        yield _coloured(line, part, colour) + (f"  reward {part.reward:g}" if part.reward is not None else "")
        for call in parse_calls(text) if part.sampled else ():
            given = ", ".join(f"{key}={value!r}" for key, value in call.arguments.items())
            yield f"           {call.problem or f'calls {call.name}({given})'}"
        if tokens:
            yield from _each(tokenizer, before, part, colour)
        before = (*before, *part.tokens)
    yield f"  {_end(response)}, {seconds:.1f} s"


def _parts(prompt: Prompt, response: Response) -> Iterator[_Part]:
    outcome = response.outcome
    rewards = dict(outcome.turn_rewards) if outcome and not outcome.problem else {}
    yield _Part("opening", prompt.tokens, sampled=False)
    for number, turn in enumerate(turns_of(response.tokens, response.sampled), 1):
        yield _Part(f"turn {number}", turn.sampled, sampled=True, reward=rewards.get(turn.end - 1))
        if turn.reply:
            name = "branch" if turn.end in response.branches else "reply"
            yield _Part(name, turn.reply, sampled=False)


def _each(
    tokenizer: PreTrainedTokenizerBase, before: Sequence[int], part: _Part, colour: bool
) -> Iterator[str]:
    whole = (*before, *part.tokens)
    for place, token in enumerate(part.tokens, len(before)):
        known = context(tokenizer, (), whole, place)
        text = continued_text(tokenizer, known, [token], skip_special_tokens=False)
        yield _coloured(f"{place:6} {token:7}  {part.kind:8} {text!r}", part, colour)


def _end(response: Response) -> str:
    """The line of an episode's end, with its sizes."""
    outcome, sampled = response.outcome, sum(response.sampled) if response.sampled else len(response.tokens)
    if outcome is None:
        return "the episode did not end"
    if outcome.problem:
        return f"no reward, so training leaves it out: {outcome.problem}"
    turns = f"{outcome.turns} turn{'s' * (outcome.turns > 1)}"
    sizes = f"{turns}, {len(response.tokens)} tokens, of which training learns from {sampled}"
    how = "ended by the environment" if response.end == "stop" else "ended by a limit (turns or maxTokens)"
    return f"{how}: reward {outcome.reward:g}, {sizes}"


def summary(played: Sequence[Response]) -> str:
    """A line about all episodes."""
    outcomes = [response.outcome for response in played if response.outcome]
    rewards = [outcome.reward for outcome in outcomes if not outcome.problem]
    words = f"{len(played)} episode{'s' * (len(played) != 1)}"
    if rewards:
        mean, turns = math.fsum(rewards) / len(rewards), sum(each.turns for each in outcomes) / len(outcomes)
        words += (
            f": reward {mean:g} on average, from {min(rewards):g} to {max(rewards):g}; {turns:.3g} turns each"
        )
    lacking = len(played) - len(rewards)
    return f"{words}; {lacking} without a reward" if lacking else words


def _short(text: str) -> str:
    return repr(text if len(text) <= _MOST else f"{text[: _MOST // 2]} ... {text[-_MOST // 2 :]}")


def _coloured(line: str, part: _Part, colour: bool) -> str:
    return f"{GREEN if part.sampled else DIM}{line}{RESET}" if colour else line
