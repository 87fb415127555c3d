"""Renders conversations by the tokenizer's chat template, with the assistant's turns marked."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from rlhf_api.chat_template import FIELD
from rlhf_api.problems import InvalidJob, Problem, show
from rlhf_api.rows import Message

ANY = "\ue000"
"""Content of a message that no template has text of its own with: a private-use character."""


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


def render(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], *, for_response: bool = False
) -> str:
    """The conversation as text; `for_response`: with the header of the assistant's next turn.

    Raises InvalidJob where there is no template or it raises for these messages.
    """
    check_template(tokenizer, FIELD)
    plain = [message.model_dump(exclude_none=True) for message in messages]
    try:
        text = tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=for_response)
    except Exception as error:  # Jinja's errors, and exceptions raised by the template
        reason = f"{type(error).__name__}: {error}"
        raise InvalidJob([Problem(FIELD, f"the template refuses {show(plain)}: {reason}")]) from error
    assert isinstance(text, str), "one conversation gives one text"
    return text


def segments(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[Message], following: Sequence[Message]
) -> list[Segment]:
    """Text segments of `following`, which begins with an assistant message, after `render(prompt, for_response=True)`.

    Raises InvalidJob where the template renders a turn differently once another one follows.
    """
    found: list[Segment] = []
    done, messages = render(tokenizer, prompt, for_response=True), [*prompt]
    for i, message in enumerate(following):
        if message.role == "assistant" and i:
            opened = render(tokenizer, messages, for_response=True)
            found.append(Segment(_after(done, opened, messages), trained=False))
            done = opened
        messages.append(message)
        rendered = render(tokenizer, messages)
        text = _after(done, rendered, messages)
        trained = message.role == "assistant"
        found.append(Segment(text, trained, _ending(tokenizer, messages, text) if trained else ""))
        done = rendered
    return found


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


def _ending(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], text: str) -> str:
    """The text that the template appends to the last message, rendered as `text`: all that follows ANY in its place.
    The content itself is not looked for, as it may be part of what follows: `end` before `<|im_end|>`. All of `text`
    where the template appends another ending to ANY."""
    *before, last = messages
    rendered = render(tokenizer, [*before, last.model_copy(update={"content": ANY})])
    _, known, ending = rendered.rpartition(ANY)
    return ending if known and text.endswith(ending) else text


def _after(done: str, rendered: str, messages: Sequence[Message]) -> str:
    if not rendered.startswith(done):
        message = (
            f"the template renders the messages before message {len(messages)} differently once it follows (some drop "
            "earlier reasoning): use rows that end with one answer, or a template that keeps earlier turns as they are"
        )
        raise InvalidJob([Problem(FIELD, f"{message}; got {show(rendered[-60:])}")])
    return rendered[len(done) :]
