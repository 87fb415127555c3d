"""Text of tokens as the continuation of the tokens before them.

Decoding is not the concatenation of single tokens' texts: decoders of SentencePiece vocabularies strip the first space
of what they decode, a character may have several tokens, and byte-fallback tokens are decoded a run at a time.
"""

from collections.abc import Sequence
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from .chat import special_tokens

PART_OF_A_CHARACTER = "\ufffd"
"""Decoded from bytes that are not a whole character yet."""
CHARACTER_BYTES = 4
"""Most bytes of a character in UTF-8; a token adds at least one."""


def continued_text(
    tokenizer: PreTrainedTokenizerBase,
    before: Sequence[int],
    tokens: Sequence[int],
    *,
    skip_special_tokens: bool = True,
) -> str:
    """The text that follows `before` in the decoding of `before` and `tokens` together: what this decoding does not
    share with that of `before` alone. So a character that `before` begins belongs to `tokens`.

    Decodes only the `context` of `before`, which gives the same text.
    """
    context_tokens = context(tokenizer, before)
    known, both = (
        str(
            tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        )
        if ids
        else ""
        for ids in (context_tokens, [*context_tokens, *tokens])
    )
    return both[common_length(known, both) :]


def token_texts(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], response: Sequence[int]
) -> list[str]:
    """The text that each token of a response adds; joined they are its `continued_text`. A character of several tokens
    belongs to the last one; special tokens add none."""
    whole = continued_text(tokenizer, prompt, response)
    pieces, first, at = [""] * len(response), 0, 0
    for place in range(len(response)):
        before = context(tokenizer, prompt, response, first)
        added = continued_text(tokenizer, before, response[first : place + 1])
        if added.endswith(PART_OF_A_CHARACTER) and place + 1 < len(response):
            continue
        # An invalid byte may change how the byte-fallback tokens before it are decoded: the whole text decides.
        end = at + common_length(added, whole[at : at + len(added)])
        pieces[place], first, at = whole[at:end], place + 1, end
    if pieces:
        pieces[-1] += whole[at:]
    return pieces


def common_length(first: str, second: str) -> int:
    """Number of characters with which both texts begin."""
    if second.startswith(first):
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def context(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Sequence[int],
    response: Sequence[int] = (),
    end: int = 0,
    count: int = CHARACTER_BYTES,
) -> list[int]:
    """The last tokens of the prompt and the response's first `end` tokens, as few as decide how tokens after them are
    decoded: at least `count` that have text, the first of which is no byte-fallback token, or all."""
    size, last_tokens = len(tokenizer), list[int]()
    special, single_bytes = _kinds(tokenizer, size)
    for tokens, length in ((response, end), (prompt, len(prompt))):
        for place in range(length - 1, -1, -1):
            token = tokens[place]
            last_tokens.append(token)
            has_text = token < size and token not in special
            count -= has_text
            if count <= 0 and has_text and token not in single_bytes:
                return last_tokens[::-1]
    return last_tokens[::-1]


@lru_cache(maxsize=8)
def _kinds(tokenizer: PreTrainedTokenizerBase, _size: int) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of special tokens, and of byte-fallback tokens (`<0x0A>`)."""
    byte_ids = (tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256))
    known = frozenset(i for i in byte_ids if isinstance(i, int) and i != tokenizer.unk_token_id)
    return special_tokens(tokenizer), known
