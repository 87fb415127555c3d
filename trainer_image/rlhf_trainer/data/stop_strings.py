"""Stop strings: where a response ends by its text, and the text that is left of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

PART_OF_A_CHARACTER = "\ufffd"
"""What a tokenizer puts for bytes that are no whole character yet."""


@dataclass(frozen=True)
class StopStrings:
    """Strings that end a response, as vLLM's `stop` does: at the token that completes one of them in the text without
    special tokens. The tokens stay as they were sampled; the text ends before the string."""

    tokenizer: PreTrainedTokenizerBase
    strings: Sequence[str] = ()

    @property
    def window(self) -> int:
        """Tokens at the end of a response in which a string stands that its last token completes: each adds a byte."""
        return max((len(string.encode()) for string in self.strings), default=0) + 1

    def ending(self, tokens: Sequence[int]) -> str | None:
        """The end of the text from the first character of a stop string on that the last of the tokens completes; of
        several the one that ends first. None where it completes none."""
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
        """Of a response, without special tokens and without a stop string that ends it."""
        text = self._decoded(tokens)
        return text.removesuffix(self.ending(tokens) or "")

    def _decoded(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))
