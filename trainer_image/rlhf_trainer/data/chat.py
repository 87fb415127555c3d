"""Renders conversations by the tokenizer's chat template, with the assistant's turns marked."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.chat_template import FIELD, GivenTemplate
from rlhf_api.dataset.messages import Message
from rlhf_api.dataset.rows import Row
from rlhf_api.errors.problem import InvalidJob, Problem, show
from rlhf_api.sections.data import Data

from .template_renderer import NotCompiled, RefusedByTemplate, render_template

ANY = "\ue000"
"""Content of a message that no template has text of its own with: a private-use character."""
NO_ARGUMENTS: Mapping[str, Any] = MappingProxyType({})
_NOTHING: tuple[Any, ...] = (None, "", [], {})
"""Values of a template's variables that are as good as none."""


class UnusableTemplate(InvalidJob):
    """The template renders no conversation, whatever the row."""


@dataclass(frozen=True)
class Segment:
    """Text after a prompt. `trained`: the assistant wrote it; `ending`: what the template appends to the message, such
    as `<|im_end|>` and a line break."""

    text: str
    trained: bool
    ending: str = ""


def check_template(tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Raises InvalidJob where the tokenizer has no chat template; `where` names a row that needs one."""
    if not tokenizer.chat_template:
        message = (
            f"is a conversation, and the tokenizer {tokenizer.name_or_path!r} has no chat template; give one as "
            f"{FIELD}, or prompts of plain text and no system prompt"
        )
        raise InvalidJob([Problem(where, message)])


def arguments_of(tokenizer: PreTrainedTokenizerBase, row: Row, data: Data) -> dict[str, Any]:
    """Arguments with which the tokenizer's chat template renders this row, besides the messages; none for plain text.

    Raises InvalidJob for tools or variables that are no such arguments, or of which the template reads nothing.
    """
    if not row.is_conversation:
        return {}
    check_template(tokenizer, FIELD)
    try:
        arguments = row.template_arguments(data.chat_template_kwargs)
        template = str(tokenizer.get_chat_template(tools=arguments.get("tools")))
    except ValueError as error:
        raise InvalidJob([Problem(FIELD, str(error))]) from error
    for name, value in arguments.items():
        if value not in _NOTHING and not _reads(template, name):
            message = (
                f"the template reads no {name!r}; give one that does, or leave it out; got {show(value)}"
            )
            raise InvalidJob([Problem(FIELD, message)])
    return arguments


@lru_cache(maxsize=256)
def _reads(template: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
    *,
    for_response: bool = False,
) -> str:
    """The conversation as text; `arguments`: see `arguments_of`; `for_response`: with the header of the assistant's
    next turn.

    Raises InvalidJob where there is no template, or it raises for these messages or takes too much, and
    UnusableTemplate where it cannot be compiled.
    """
    check_template(tokenizer, FIELD)
    plain = [message.for_template() for message in messages]
    try:
        return render_template(tokenizer, plain, arguments, for_response=for_response)
    except NotCompiled as error:
        remedy = f"; {_simpler(tokenizer)}" if error.over_limit else ""
        message = f"the template cannot be compiled: {error}{remedy}"
        raise UnusableTemplate([Problem(FIELD, message)]) from error
    except RefusedByTemplate as error:  # as it raises, or by a limit
        remedy = f"; shorten the conversation, or {_simpler(tokenizer)}" if error.over_limit else ""
        message = f"the template refuses {show(plain)}: {error}{remedy}"
        raise InvalidJob([Problem(FIELD, message)]) from error
    except Exception as error:  # of a tokenizer that renders by its own code
        message = f"the template refuses {show(plain)}: {type(error).__name__}: {error}"
        raise InvalidJob([Problem(FIELD, message)]) from error


def _simpler(tokenizer: PreTrainedTokenizerBase) -> str:
    """Remedy for a template that takes too much."""
    if isinstance(tokenizer.chat_template, GivenTemplate):
        return "give a simpler template"
    return (
        f"give a simpler template than that of the tokenizer {tokenizer.name_or_path!r}: here or, if that is a reward "
        "model, in its files"
    )


def segments(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[Message],
    following: Sequence[Message],
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
) -> list[Segment]:
    """Text segments of `following`, which begins and ends with an assistant message, after
    `render(prompt, arguments, for_response=True)`. Messages between two of the assistant's are one segment: templates
    may put the results of several tools into one turn.

    Raises InvalidJob where the template renders a turn differently once another one follows.
    """
    parts: list[Segment] = []
    done, messages = render(tokenizer, prompt, arguments, for_response=True), [*prompt]
    for i, message in enumerate(following):
        if message.role == "assistant" and i:
            opened = render(tokenizer, messages, arguments, for_response=True)
            parts.append(Segment(_after(done, opened, messages), trained=False))
            done = opened
        messages.append(message)
        if message.role == "assistant":
            rendered = render(tokenizer, messages, arguments)
            text = _after(done, rendered, messages)
            parts.append(Segment(text, True, _ending(tokenizer, messages, arguments, text)))
            done = rendered
    return parts


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of special tokens, which no text contains, such as those that end a turn."""
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset({*added, *tokenizer.all_special_ids})


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The token with which the chat template ends the assistant's turn; None without a template or such a token."""
    return _end_of_turn(tokenizer, str(tokenizer.chat_template)) if tokenizer.chat_template else None


@lru_cache(maxsize=8)
def _end_of_turn(tokenizer: PreTrainedTokenizerBase, _template: str) -> int | None:
    question, answer = Message(role="user", content="a"), Message(role="assistant", content="b")
    try:
        (segment,) = segments(tokenizer, [question], [answer])
    except InvalidJob:  # a template that does not take this conversation
        return None
    special = special_tokens(tokenizer)
    return next(
        (i for i in tokenizer(segment.ending, add_special_tokens=False)["input_ids"] if i in special), None
    )


def without_oldest(messages: Sequence[Message]) -> list[Message] | None:
    """The conversation without its oldest question and answer, system prompt kept; None without a second one."""
    first = next((i for i, message in enumerate(messages) if message.role == "user"), len(messages))
    second = next((i for i in range(first + 1, len(messages)) if messages[i].role == "user"), None)
    return None if second is None else [*messages[:first], *messages[second:]]


def _ending(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    arguments: Mapping[str, Any],
    text: str,
) -> str:
    """The text that the template appends to the last message, rendered as `text`: all that follows ANY in its place.
    The content itself is not looked for, as it may be part of what follows: `end` before `<|im_end|>`. All of `text`
    where the template appends another ending to ANY.

    Tool calls, whose tokens may be special too, are the assistant's, and end as text does, or else with the last
    special token."""
    *before, last = messages
    calls = bool((last.model_extra or {}).get("tool_calls"))
    any_text = Message(role=last.role, content=ANY) if calls else last.model_copy(update={"content": ANY})
    rendered = render(tokenizer, [*before, any_text], arguments)
    _, known, ending = rendered.rpartition(ANY)
    if known and text.endswith(ending):
        return ending
    return text[_last_special(tokenizer, text) :] if calls else text


def _last_special(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Place of the last special token in a text; its end if there is none."""
    special = tokenizer.convert_ids_to_tokens(sorted(special_tokens(tokenizer)))
    place = max(map(text.rfind, special), default=-1)
    return place if place >= 0 else len(text)


def _after(done: str, rendered: str, messages: Sequence[Message]) -> str:
    if not rendered.startswith(done):
        message = (
            f"the template renders the messages before message {len(messages)} differently once it follows (some drop "
            "earlier reasoning): use rows that end with one answer, or a template that keeps earlier turns as they are"
        )
        raise InvalidJob([Problem(FIELD, f"{message}; got {show(rendered[-60:])}")])
    return rendered[len(done) :]
