"""Tokenized prompts of a dataset."""

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from rlhf_api.rows import PromptRow, Row

from ..records import Prompt
from .encode import encode_prompt


def prompts(
    rows: Sequence[Row],
    places: Sequence[tuple[int, int]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> list[Prompt]:
    """Prompts of the `places` ((epoch, row) each) in `rows`, which are checked prompt rows."""
    made: list[Prompt] = []
    for epoch, index in places:
        row = cast(PromptRow, rows[index])
        encoded = encode_prompt(tokenizer, row.prompt, max_length)
        made.append(Prompt(f"{epoch}/{index}", encoded.prompt, row.model_dump(), encoded.prompt_cut))
    return made
