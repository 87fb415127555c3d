"""Sequences of given responses, by the kind of the dataset's rows."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_api.graph import RowKind
from rlhf_api.spec import Data

from ..data.encode import Encoded, encode
from ..records import Columns, Sequences

Encode = Callable[[Sequence[Any], PreTrainedTokenizerBase, Data], list[Encoded]]


def encode_responses(rows: Sequence[Any], tokenizer: PreTrainedTokenizerBase, data: Data) -> list[Encoded]:
    """One sequence for each prompt-answer row."""
    lengths = data.max_prompt_length, data.max_answer_length
    return [encode(tokenizer, row.prompt, row.answer, *lengths) for row in rows]


def encode_pairs(rows: Sequence[Any], tokenizer: PreTrainedTokenizerBase, data: Data) -> list[Encoded]:
    """Two sequences for each pair of each row: the better response, then the worse."""
    lengths = data.max_prompt_length, data.max_answer_length
    return [
        encode(tokenizer, row.prompt, response, *lengths)
        for row in rows
        for pair in zip(row.pos_answers, row.neg_answers, strict=True)
        for response in pair
    ]


ENCODE: dict[RowKind, Encode] = {"responses": encode_responses, "pairs": encode_pairs}


def given_columns(
    kind: RowKind, rows: Sequence[Any], tokenizer: PreTrainedTokenizerBase, data: Data
) -> tuple[Columns, dict[str, float]]:
    """The rows' sequences, with a `mask` where some tokens of a response are not trained on; and the metrics: how many
    sequences lost tokens of their prompt or of their response because they did not fit."""
    encoded = ENCODE[kind](rows, tokenizer, data)
    columns = Columns(Sequences.pack([(e.prompt, e.response) for e in encoded]))
    mask = torch.tensor([trained for e in encoded for trained in e.mask])
    if not bool(mask.all()):
        columns = columns.with_tokens(mask=mask)
    return columns, {
        "prompts_cut": float(sum(e.prompt_cut > 0 for e in encoded)),
        "responses_cut": float(sum(e.response_cut > 0 for e in encoded)),
    }
