"""Special tokens that a message only quotes. They stay text: no opening or reply ends its own turn, or begins
another's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.messages import Message

from ..data.chat import special_tokens
from ..data.encode import continuation

_PRIVATE = range(0xF0000, 0xFFFFE)
"""Characters of private use, which no template has text of its own with."""


@dataclass(frozen=True)
class Quoting:
    """Messages to render, with a character in place of each special token's text that they quote; `quoted`: those texts
    by their characters."""

    messages: Sequence[Message]
    quoted: Mapping[str, str]

    def tokens(self, tokenizer: PreTrainedTokenizerBase, before: str, text: str) -> list[int]:
        """Tokens of rendered `text` as a continuation of `before`. What is quoted has the tokens of its characters."""
        if not self.quoted:
            return continuation(tokenizer, before, text)
        tokens = list[int]()
        for piece in re.split(f"([{''.join(self.quoted)}])", text):
            for part in (
                _spelled(tokenizer, self.quoted[piece]) if piece in self.quoted else filter(None, [piece])
            ):
                tokens += continuation(tokenizer, before, part)
                before = part[-1]
        return tokens


def quoting(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], beside: Sequence[Message] = ()
) -> Quoting:
    """The messages, ready to render `beside` others, in which special tokens are what they are."""
    pattern = _special(tokenizer, len(tokenizer))
    plain = [message.for_template() for message in messages]
    texts = [text for message in plain for text in _texts(message)]
    if not (quoted := dict.fromkeys(each for text in texts for each in pattern.findall(text))):
        return Quoting(messages, {})
    others = [text for message in beside for text in _texts(message.for_template())]
    taken = {character for text in (*texts, *others) for character in text}
    free = (character for character in map(chr, _PRIVATE) if character not in taken)
    marks = dict(zip(quoted, free, strict=False))
    hidden = [_replaced(message, pattern, marks) for message in plain]
    return Quoting([*map(Message.model_validate, hidden)], {mark: text for text, mark in marks.items()})


@lru_cache(maxsize=8)
def _special(tokenizer: PreTrainedTokenizerBase, _size: int) -> re.Pattern[str]:
    """Matches the text of any special token, the longest first; nothing without any."""
    texts = filter(None, map(str, tokenizer.convert_ids_to_tokens(sorted(special_tokens(tokenizer)))))
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


def _spelled(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """A special token's text in parts that are none, nor have one within."""
    pattern = _special(tokenizer, len(tokenizer))
    parts = [*text] if pattern.search(text[1:]) else [text[:1], text[1:]]
    return [part for part in parts if part and not pattern.search(part)]


def _texts(value: Any) -> list[str]:
    """All text in a message, names of its fields too."""
    if isinstance(value, str):
        return [value]
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in _texts(part)]


def _replaced(value: Any, pattern: re.Pattern[str], marks: Mapping[str, str]) -> Any:
    """`value` with the mark of each special token in place of its text."""
    if isinstance(value, str):
        return pattern.sub(lambda match: marks[match[0]], value)
    if isinstance(value, dict):
        return {
            _replaced(name, pattern, marks): _replaced(each, pattern, marks) for name, each in value.items()
        }
    return [_replaced(each, pattern, marks) for each in value] if isinstance(value, list) else value
