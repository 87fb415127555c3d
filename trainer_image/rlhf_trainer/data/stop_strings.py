"""Stop strings: detection in a response's text, and their removal from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

PART_OF_A_CHARACTER = "\ufffd"
"""Decoded from bytes that are not a whole character yet."""


@dataclass(frozen=True)
class StopStrings:
    """Strings that end a response, with the semantics of vLLM's `stop`: generation ends at the token that completes one
    of them in the text without special tokens. The tokens stay as sampled; the text ends before the string."""

    tokenizer: PreTrainedTokenizerBase
    strings: Sequence[str] = ()

    @property
    def window(self) -> int:
        """Number of last tokens that can contain a stop string completed by the last one: each adds at least a byte."""
        return max((len(string.encode()) for string in self.strings), default=0) + 1

    def ending(self, tokens: Sequence[int]) -> str | None:
        """The text from the first character of a stop string that the last token completes; of several, the one that
        ends first. None if it completes none."""
        if not self.strings:
            return None
        tail = list(tokens[-self.window :])
        known, text = self._decoded(tail[:-1]).rstrip(PART_OF_A_CHARACTER), self._decoded(tail)
        ends = dict[int, int]()
        for string in self.strings:
            at = text.find(string, max(0, len(known) - len(string) + 1))
            if at >= 0:
                ends.setdefault(at + len(string), at)
        return text[ends[min(ends)] :] if ends else None

    def text(self, tokens: Sequence[int]) -> str:
        """Text of a response, without special tokens and without the stop string that ends it."""
        text = self._decoded(tokens)
        return text.removesuffix(self.ending(tokens) or "")

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
