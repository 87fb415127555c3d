"""Tokenized prompts of a dataset, and the responses that it gives to some of them."""

import math
from collections.abc import Container, Sequence
from fractions import Fraction

from transformers import PreTrainedTokenizerBase

from rlhf_api.dataset.rows import Row
from rlhf_api.sections.data import Data

from ..tensors.records import Given, Prompt
from .vision import ImageReader, encode_with_images


def prompts(
    rows: Sequence[Row],
    places: Sequence[tuple[int, int]],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    given: Container[int] = (),
    reader: ImageReader | None = None,
) -> list[Prompt]:
    """Prompts of the `places` ((epoch, row) each) in `rows`, which are checked, with their images; those of which the
    index is in `given` have their row's answer too. `reader`: of a policy that reads images."""
    made: list[Prompt] = []
    for number, (epoch, index) in enumerate(places):
        row = rows[index]
        encoded = encode_with_images(row, tokenizer, data, reader, answered=number in given)
        fields = row.model_dump(exclude_unset=True)
        answer = Given(encoded.response, encoded.mask, not encoded.response_cut) if encoded.response else None
        made.append(
            Prompt(f"{epoch}/{index}", encoded.prompt, fields, encoded.prompt_cut, answer, encoded.pictures)
        )
    return made


def is_given(position: int, share: float) -> bool:
    """True of a share of the positions in the run's order, at equal distances: of n in a row n x share, to within one.

    The rows there are in random order, so these are drawn at random; and the same ones whatever happens to a run.
    """
    exact = Fraction(share).limit_denominator(10**6)
    return math.floor((position + 1) * exact) > math.floor(position * exact)
