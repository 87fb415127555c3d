"""Tokenized sequences of given responses, by row kind."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_api.field_types import RowKind
from rlhf_api.graph import LABEL, MARGIN, STEP_LABEL
from rlhf_api.sections.data import Data

from ..data.chat import arguments_of
from ..data.encode import Encoded, encode, turns
from ..data.steps import joined, step_labels
from ..data.vision import ImageReader, encode_with_images
from ..tensors.columns import Columns
from ..tensors.images import Images
from ..tensors.records import Sequences

Encode = Callable[[Sequence[Any], PreTrainedTokenizerBase, Data, ImageReader | None], list[Encoded]]


def _encode_responses(
    rows: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    reader: ImageReader | None = None,
) -> list[Encoded]:
    """One sequence for each prompt-response row."""
    return [encode_with_images(row, tokenizer, data, reader, answered=True) for row in rows]


def _encode_pairs(
    rows: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    _reader: ImageReader | None = None,
) -> list[Encoded]:
    """Two sequences for each pair of a row: the chosen response, then the rejected one. Where any of them is a message,
    all are turns of a conversation: they differ in nothing but what was said."""
    lengths = data.max_prompt_length, data.max_response_length
    return [
        encode(tokenizer, prompt, response, *lengths, arguments)
        for row in rows
        for arguments in [arguments_of(tokenizer, row, data)]
        for prompt in [turns(row.prompt, "user") if row.is_conversation else row.prompt]
        for pair in zip(row.pos_answers, row.neg_answers, strict=True)
        for response in pair
    ]


def _encode_steps(
    rows: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    reader: ImageReader | None = None,
) -> list[Encoded]:
    """One sequence for each row, with labels at the ends of its steps."""
    separator = data.step_separator
    answers = [row.model_copy(update={"answer": joined(row.steps, separator)}) for row in rows]
    return [
        replace(made, step_labels=step_labels(tokenizer, made, row.labels, separator))
        for made, row in zip(_encode_responses(answers, tokenizer, data, reader), rows, strict=True)
    ]


ENCODE: dict[RowKind, Encode] = {
    "responses": _encode_responses,
    "pairs": _encode_pairs,
    "graded": _encode_pairs,
    "labeled": _encode_responses,
    "stepwise": _encode_steps,
}


def encode_row(
    row: Any,
    kind: RowKind,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    reader: ImageReader | None = None,
) -> list[Encoded]:
    """The sequences of one row; only the prompt if responses are sampled. `reader`: of a policy that reads images."""
    if kind == "prompts":
        return [encode_with_images(row, tokenizer, data, reader, answered=False)]
    return ENCODE[kind]([row], tokenizer, data, reader)


def _mismatched(encoded: Sequence[Encoded]) -> list[Encoded]:
    """Each prompt with the response of the next sequence, the last one's with that of the first."""
    following = (*encoded[1:], *encoded[:1])
    return [
        replace(own, response=other.response, mask=other.mask)
        for own, other in zip(encoded, following, strict=True)
    ]


def given_columns(
    kind: RowKind,
    rows: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    reader: ImageReader | None = None,
) -> tuple[Columns, dict[str, float]]:
    """Columns of the rows' sequences, with a `mask` if some response tokens are not trained on; and metrics: the
    numbers of sequences whose prompt or response was cut. Labeled rows are followed by as many sequences of each one's
    prompt with the next one's response, and have a column LABEL; graded ones have a column MARGIN, and those with steps
    STEP_LABEL."""
    encoded = ENCODE[kind](rows, tokenizer, data, reader)
    mismatched = _mismatched(encoded) if kind == "labeled" else []
    sequences = Sequences.pack([(e.prompt, e.response) for e in (*encoded, *mismatched)])
    images = Images.of([each.pictures for each in (*encoded, *mismatched)])
    columns = Columns(replace(sequences, images=images))
    if kind == "labeled":
        labels = [1.0 if row.label else -1.0 for row in rows] + [0.0] * len(mismatched)
        columns = columns.with_rows(**{LABEL: torch.tensor(labels)})
    if kind == "graded":
        margins = [row.margin for row in rows for _ in range(2 * len(row.pos_answers))]
        columns = columns.with_rows(**{MARGIN: torch.tensor(margins)})
    if kind == "stepwise":
        of_tokens = [label for each in encoded for label in each.step_labels]
        columns = columns.with_tokens(**{STEP_LABEL: torch.tensor(of_tokens)})
    mask = torch.tensor([trained for e in (*encoded, *mismatched) for trained in e.mask])
    if not bool(mask.all()):
        columns = columns.with_tokens(mask=mask)
    return columns, {
        "prompts_cut": float(sum(e.prompt_cut > 0 for e in encoded)),
        "responses_cut": float(sum(e.response_cut > 0 for e in encoded)),
    }
