"""Tokenized prompts of a dataset."""

from collections.abc import Sequence
from typing import cast

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.rows import PromptRow, Row
from rlhf_api.sections.data import Data

from ..tensors.records import Prompt
from .chat import arguments_of
from .encode import encode_prompt


def prompts(
    rows: Sequence[Row],
    places: Sequence[tuple[int, int]],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
) -> list[Prompt]:
    """Prompts of the `places` ((epoch, row) each) in `rows`, which are checked prompt rows."""
    made: list[Prompt] = []
    for epoch, index in places:
        row = cast(PromptRow, rows[index])
        arguments = arguments_of(tokenizer, row, data)
        encoded = encode_prompt(tokenizer, row.prompt, data.max_prompt_length, arguments)
        given = row.model_dump(exclude_unset=True)
        made.append(Prompt(f"{epoch}/{index}", encoded.prompt, given, encoded.prompt_cut))
    return made
