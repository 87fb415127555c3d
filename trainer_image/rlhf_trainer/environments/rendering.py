"""Openings and replies of environments as tokens, and turns of the model as text."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.messages import Message
from rlhf_api.dataset.rows import PromptRow
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.data import Data

from ..data.chat import arguments_of
from ..data.encode import TooLong, encode_prompt
from ..data.stop_strings import StopStrings
from ..data.text import continued_text
from ..tensors.records import Prompt
from .adapter import Unfit
from .quoted import Quoting, quoting
from .tail import check_replies, reply_tokens
from .turn_text import TurnText


@dataclass(frozen=True)
class Opened:
    """Rendered opening of an episode: its prompt's tokens; whether it is a conversation, and the arguments of the chat
    template that its replies are rendered with."""

    tokens: tuple[int, ...]
    conversation: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Rendering:
    """Of one job. On any thread."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        data: Data,
        ends: Sequence[int],
        stops: StopStrings,
        tools: Sequence[Mapping[str, Any]],
    ) -> None:
        """`ends`: tokens that end a turn; `stops`: strings that do; `tools`: schemas of the environment's tools."""
        self._tokenizer, self._data, self._ends, self._stops = tokenizer, data, ends, stops
        self._tools = [dict(tool) for tool in tools]
        self._checked = False

    def open(self, prompt: Prompt, opening: Mapping[str, Any], longest: int | None = None) -> Opened:
        """The prompt as the environment opens it; `opening`: the fields of an `adapter.Opening`; `longest`: most
        tokens, None: as many as a prompt has.

        Raises Unfit for messages that are none, or messages or tools that the chat template cannot render, and
        InvalidJob where it cannot render the row's own prompt, replies or the class's tools, or the prompt is too long.
        """
        row = PromptRow.model_validate(dict(prompt.row))
        opened, quoted = _opened(self._tokenizer, row.prompt, opening)
        row = row.model_copy(update={"prompt": opened})
        if opening["tools"] is not None:
            row = row.model_copy(update={"tools": opening["tools"]})
        if self._tools:
            if isinstance(row.prompt, str):
                message = (
                    "tools of an environment are offered by a chat template; make the prompts conversations"
                )
                raise InvalidJob([Problem("spec.data", message)])
            tools = row.template_arguments({}).get("tools") or []
            row = row.model_copy(update={"tools": [*tools, *self._tools]})
        arguments = arguments_of(self._tokenizer, row, self._data)
        conversation = row.is_conversation
        if conversation and not self._checked:
            with _unfit(if_any=[opening["tools"]]):
                check_replies(self._tokenizer, arguments, tools=bool(arguments.get("tools")))
            self._checked = True
        with _unfit(if_any=[opening["tools"], opening["messages"]]):
            encoded = encode_prompt(
                *(self._tokenizer, row.prompt, longest or self._data.max_prompt_length, arguments),
                tokens_of=lambda text: quoted.tokens(self._tokenizer, "", text),
            )
        return Opened(encoded.prompt, conversation, arguments)

    def reply(self, opened: Opened, turn: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """The tokens of a reply to a turn. Raises Unfit for messages that are none or have no tokens, InvalidJob where
        the chat template does not render them."""
        arguments, conversation = opened.arguments, opened.conversation
        tokens = reply_tokens(
            self._tokenizer, turn, self._ends, _checked(messages), arguments, conversation=conversation
        )
        if not tokens:
            raise Unfit("the environment's reply has no tokens")
        return tokens

    def turn_text(self, before: Sequence[int], turn: Sequence[int]) -> TurnText:
        """A turn as text; `before`: the tokens before it."""
        raw = continued_text(self._tokenizer, before, turn, skip_special_tokens=False)
        is_whole = turn[-1] in self._ends or self._stops.ending(before, turn) is not None
        return TurnText(self._stops.text(before, turn), raw, is_whole, len(before), len(turn))


def _opened(
    tokenizer: PreTrainedTokenizerBase, prompt: str | list[Message], opening: Mapping[str, Any]
) -> tuple[str | list[Message], Quoting]:
    """The row's prompt as the environment changes it, and what the environment quotes in it. A user's text in its place
    keeps a system prompt."""
    messages, text = opening["messages"], opening["text"]
    if messages is not None:
        ready = quoting(tokenizer, _checked(messages))
        return [*ready.messages], ready
    if text is None:
        return prompt, Quoting((), {})
    (user,) = _checked([{"role": "user", "content": text}])
    if isinstance(prompt, str):
        return prompt + text if opening["added"] else text, Quoting((), {})
    ready = quoting(tokenizer, [user], beside=prompt)
    (user,) = ready.messages
    if not opening["added"]:
        return [*(message for message in prompt[:1] if message.role == "system"), user], ready
    *first, last = prompt
    content = (last.content or "") + (user.content or "")
    return [*first, Message.model_validate({**last.for_template(), "content": content})], ready


@contextmanager
def _unfit(if_any: Sequence[object]) -> Iterator[None]:
    """Raises Unfit for what a manifest is no reason of, since the environment gave one of these."""
    try:
        yield
    except InvalidJob as error:
        if isinstance(error, TooLong) or all(each is None for each in if_any):
            raise
        raise Unfit(str(error.problems[0])) from error


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    try:
        return [Message.model_validate(dict(message)) for message in messages]
    except ValidationError as error:
        raise Unfit(f"the environment's messages are none: {error.errors()[0]['msg']}") from None
