"""Tokenized prompts of a dataset, and the responses that it gives to some of them."""

import math
from collections.abc import Container, Sequence
from fractions import Fraction
from typing import cast

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.rows import AnswerRow, PromptRow, Row
from rlhf_api.sections.data import Data

from ..tensors.records import Given, Prompt
from .chat import arguments_of
from .encode import Encoded, encode, encode_prompt


def prompts(
    rows: Sequence[Row],
    places: Sequence[tuple[int, int]],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    given: Container[int] = (),
) -> list[Prompt]:
    """Prompts of the `places` ((epoch, row) each) in `rows`, which are checked; those of which the index is in `given`
    have their row's answer too."""
    made: list[Prompt] = []
    for number, (epoch, index) in enumerate(places):
        row = cast(PromptRow, rows[index])
        encoded = _encoded(row, tokenizer, data, answered=number in given)
        fields = row.model_dump(exclude_unset=True)
        answer = Given(encoded.response, encoded.mask, not encoded.response_cut) if encoded.response else None
        made.append(Prompt(f"{epoch}/{index}", encoded.prompt, fields, encoded.prompt_cut, answer))
    return made


def is_given(position: int, share: float) -> bool:
    """True of a share of the positions in the run's order, at equal distances: of n in a row n x share, to within one.

    The rows there are in random order, so these are drawn at random; and the same ones whatever happens to a run.
    """
    exact = Fraction(share).limit_denominator(10**6)
    return math.floor((position + 1) * exact) > math.floor(position * exact)


def _encoded(row: PromptRow, tokenizer: PreTrainedTokenizerBase, data: Data, *, answered: bool) -> Encoded:
    arguments, longest = arguments_of(tokenizer, row, data), data.max_prompt_length
    if not answered:
        return encode_prompt(tokenizer, row.prompt, longest, arguments)
    answer = cast(AnswerRow, row).answer
    return encode(tokenizer, row.prompt, answer, longest, data.max_response_length, arguments)
