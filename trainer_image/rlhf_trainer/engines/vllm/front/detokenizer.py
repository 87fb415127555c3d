"""vLLM's incremental detokenizer, with the text that the trainer reads: both find a stop string at the same token."""

from typing import TYPE_CHECKING, Any

from tokenizers.decoders import DecodeStream
from vllm.v1.engine import detokenizer

from ....data.text import PART_OF_A_CHARACTER, common_length, context, continued_text

if TYPE_CHECKING:
    from transformers import TokenizersBackend
    from vllm.v1.engine import EngineCoreRequest


class ContinuedText(detokenizer.FastIncrementalDetokenizer):
    """The text of a response as in `data.text.continued_text`, token by token.

    vLLM's own stream returns the whole prompt with the first text where the prompt ends inside a character, as one does
    that ends with the tokens of an interrupted response; then a stop string of the prompt ends the response. After
    byte-fallback tokens that are no UTF-8 it goes on without context.
    """

    def __init__(self, tokenizer: "TokenizersBackend", request: "EngineCoreRequest") -> None:
        super().__init__(tokenizer, request)
        self._reader, self._prompt = tokenizer, request.prompt_token_ids or []
        self._restart()

    def _restart(self) -> None:
        """A stream that continues all tokens so far."""
        self._read = len(self.token_ids)
        before = context(self._reader, self._prompt, self.token_ids, self._read)
        self.stream = DecodeStream(ids=before, skip_special_tokens=self.skip_special_tokens)
        known = continued_text(self._reader, (), before, skip_special_tokens=self.skip_special_tokens)
        self._repeated = known if known.endswith(PART_OF_A_CHARACTER) else ""

    def _protected_step(self, next_token_id: int) -> str | None:
        stream = self.stream
        text = super()._protected_step(next_token_id)
        if self.stream is not stream:
            before = context(self._reader, self._prompt, self.token_ids, self._read)
            added = self.token_ids[self._read :]
            text = continued_text(self._reader, before, added, skip_special_tokens=self.skip_special_tokens)
            self._restart()
        elif text:
            text = text[common_length(self._repeated, text) :]
            self._read, self._repeated = len(self.token_ids), ""
        return text


def install() -> None:
    """Makes the servers of this process detokenize so. vLLM chooses the class by its name in the module."""
    module: Any = detokenizer
    module.FastIncrementalDetokenizer = ContinuedText
