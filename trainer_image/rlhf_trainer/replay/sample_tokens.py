"""Writes the tokens of samples with their values as JSON, for readers that parse no Parquet and have no tokenizer."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_api.contract.sample_tokens import TOKENS, VALUES, ResponseTokens, StepTokens
from rlhf_api.host import strict_json

from ..data.text import token_texts
from .table import Episode, Texts, tabulate

MOST_TOKENS = 1 << 15
"""Of a step, in whole responses: about 100 bytes each."""


def encode_tokens(sampled: Episode, texts: Texts, tokenizer: PreTrainedTokenizerBase) -> bytes:
    """Serializes the samples of a step; the first ones, if they are long."""
    table = tabulate(sampled, texts)
    names = [name for name in (TOKENS, *VALUES.values()) if name in table.column_names]
    rows = table.select(["prompt_id", "prompt_tokens", *names]).to_pylist()
    lengths = accumulate(len(row[TOKENS]) for row in rows)
    fitting = [row for row, tokens in zip(rows, lengths, strict=True) if tokens <= MOST_TOKENS]
    responses = tuple(
        ResponseTokens(
            prompt_id=row["prompt_id"],
            texts=tuple(_name_tokens(tokenizer, row["prompt_tokens"], row[TOKENS])),
            columns={name: tuple(map(_shorten, row[name])) for name in names},
        )
        for row in fitting
    )
    written = StepTokens(responses=responses).model_dump()
    return strict_json.dumps(written, ensure_ascii=False).encode()


def _name_tokens(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], response: Sequence[int]
) -> list[str]:
    special = set(tokenizer.all_special_ids)
    pieces = zip(token_texts(tokenizer, prompt, response), response, strict=True)
    return [str(tokenizer.convert_ids_to_tokens(id)) if id in special else text for text, id in pieces]


def _shorten(value: Any) -> Any:
    """A float with the digits that a float32 has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value
