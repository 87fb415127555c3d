"""Stop strings: detection in a response's text, and their removal from it."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from .text import CHARACTER_BYTES, PART_OF_A_CHARACTER, common_length, context, continued_text


@dataclass(frozen=True)
class StopStrings:
    """Strings that end a response, with the semantics of vLLM's `stop`: generation ends at the token that completes one
    of them in the text without special tokens. The tokens stay as sampled; the text ends before the string. Tokens of
    an unfinished character complete nothing until the character is whole."""

    tokenizer: PreTrainedTokenizerBase
    strings: Sequence[str] = ()

    def ending(self, prompt: Sequence[int], response: Sequence[int]) -> str | None:
        """The text from the first character of a stop string that the last token completes; of several, the one that
        ends first. None if it completes none. Decodes only the last tokens, and the prompt's if there are few."""
        if not self.strings or not response:
            return None
        tail = context(self.tokenizer, (), response, len(response), self.window)
        before = prompt if len(tail) == len(response) else ()
        text = continued_text(self.tokenizer, before, tail)
        if text.endswith(PART_OF_A_CHARACTER) or not any(string in text for string in self.strings):
            return None
        for end in range(len(tail) - 1, -1, -1):
            known = continued_text(self.tokenizer, before, tail[:end])
            if not known.endswith(PART_OF_A_CHARACTER):
                break
        ends, length = dict[int, int](), common_length(known, text)
        for string in self.strings:
            at = text.find(string, max(0, length - len(string) + 1))
            if at >= 0:
                ends.setdefault(at + len(string), at)
        return text[ends[min(ends)] :] if ends else None

    def text(self, prompt: Sequence[int], response: Sequence[int]) -> str:
        """Text of a response, without special tokens and without the stop string that ends it."""
        text = continued_text(self.tokenizer, prompt, response)
        return text.removesuffix(self.ending(prompt, response) or "")

    @property
    def window(self) -> int:
        """Number of last tokens with text that can contain a stop string completed by the last one, and the context to
        decode them in: each adds at least a byte."""
        longest = max((len(string.encode()) for string in self.strings), default=0)
        return longest + 2 * CHARACTER_BYTES
