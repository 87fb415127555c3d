"""Sequences of given responses, by the kind of the dataset's rows."""

from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.graph import RowKind
from rlhf_api.spec import Data

from ..data import encode_prompt, encode_response
from ..records import Sequences

Encode = Callable[[Sequence[Any], PreTrainedTokenizerBase, Data], Sequences]


def response_sequences(rows: Sequence[Any], tokenizer: PreTrainedTokenizerBase, data: Data) -> Sequences:
    """One sequence for each prompt-answer row, the end token included."""
    return Sequences.pack(
        [
            (
                encode_prompt(tokenizer, row.prompt, data.max_prompt_length),
                encode_response(tokenizer, row.answer, data.max_answer_length),
            )
            for row in rows
        ]
    )


def pair_sequences(rows: Sequence[Any], tokenizer: PreTrainedTokenizerBase, data: Data) -> Sequences:
    """Two sequences for each pair of each row: the better response, then the worse."""
    pairs = []
    for row in rows:
        prompt = encode_prompt(tokenizer, row.prompt, data.max_prompt_length)
        for better, worse in zip(row.pos_answers, row.neg_answers, strict=True):
            pairs += [
                (prompt, encode_response(tokenizer, text, data.max_answer_length)) for text in (better, worse)
            ]
    return Sequences.pack(pairs)


ENCODE: dict[RowKind, Encode] = {"responses": response_sequences, "pairs": pair_sequences}
