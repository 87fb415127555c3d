"""An environment's reply as the tokens that follow a turn of the model: the tail of the chat template.

A conversation with a stand-in for the turn is rendered, and what follows the stand-in is tokenized alone: so no token
that was sampled is ever tokenized again, and templates that render earlier turns otherwise, as those do that drop the
model's reasoning, keep them here as they were sampled.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.chat_template import FIELD
from rlhf_api.dataset.messages import Message
from rlhf_api.errors.problem import InvalidJob, Problem

from ..data.chat import ANY, NO_ARGUMENTS, end_of_turn, render
from ..data.text import continued_text
from .quoted import Quoting, quoting

_CONTEXT = 16
"""Last tokens of a turn that decide how text after them is tokenized."""


def reply_tokens(
    tokenizer: PreTrainedTokenizerBase,
    turn: Sequence[int],
    ends: Sequence[int],
    messages: Sequence[Message],
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
    *,
    conversation: bool,
) -> list[int]:
    """The tokens between `turn`, as it was sampled, and the model's next turn. A turn that ends with none of `ends` was
    cut off: the template's end of a turn is then the first of them. Special tokens are the template's alone: those that
    messages quote are text. After a prompt of plain text, no `conversation`, they are the messages' text.

    Raises InvalidJob where the template does not render these messages after the assistant's.
    """
    ready = Quoting(messages, {})
    if conversation:
        ready = quoting(tokenizer, messages)
        text, end = _tail(tokenizer, ready.messages, arguments), end_of_turn(tokenizer)
    else:
        text, end = "".join(message.content or "" for message in messages), None
    before = continued_text(tokenizer, (), turn[-_CONTEXT:], skip_special_tokens=False)
    if end is not None and turn[-1] in ends:
        before = str(tokenizer.convert_ids_to_tokens(end))
        if (ended := text.lstrip()).startswith(before):
            text = ended.removeprefix(before)
    return ready.tokens(tokenizer, before, text) if text else []


def check_replies(tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], *, tools: bool) -> None:
    """Raises InvalidJob where the chat template renders no reply of a user or, with `tools`, of a tool."""
    replies = [{"role": "user", "content": "b"}] + [{"role": "tool", "name": "c", "content": "d"}] * tools
    for reply in replies:
        _tail(tokenizer, [Message.model_validate(reply)], arguments)


def _tail(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], arguments: Mapping[str, Any]
) -> str:
    before = [Message(role="user", content="a"), Message(role="assistant", content=ANY)]
    rendered = render(tokenizer, [*before, *messages], arguments, for_response=True)
    _, mark, tail = rendered.partition(ANY)
    if not mark:
        message = "the template drops the assistant's earlier turns, after which an environment replies"
        raise InvalidJob([Problem(FIELD, f"{message}; give one that renders them")])
    return tail
