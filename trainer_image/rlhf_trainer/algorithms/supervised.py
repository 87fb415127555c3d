"""Supervised fine-tuning and reward modelling: rows to sequences, and their losses. Pure."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_api.spec import Data

from ..batches import Loss, MicroBatch
from ..data import encode_prompt, encode_response
from ..maths.losses import pairwise_loss, token_weights
from ..records import Sequences


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
    """Two sequences for each pair of each row: the better answer, then the worse."""
    pairs = []
    for row in rows:
        prompt = encode_prompt(tokenizer, row.prompt, data.max_prompt_length)
        for better, worse in zip(row.pos_answers, row.neg_answers, strict=True):
            pairs += [
                (prompt, encode_response(tokenizer, text, data.max_answer_length)) for text in (better, worse)
            ]
    return Sequences.pack(pairs)


def response_loss(sequences: Sequences) -> Loss:
    """Mean negative log-likelihood of the answer tokens, in nats."""
    weights = token_weights(sequences.response_lengths, "token")

    def loss(logprobs: Tensor, micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return -(weights[micro.response_index].to(logprobs.device) * logprobs).sum(), {}

    return loss


def preference_loss(sequences: Sequences) -> Loss:
    """Mean pairwise loss of rows (2i, 2i + 1), and the share of pairs that the scores order rightly."""
    pairs = len(sequences) // 2

    def loss(scores: Tensor, _micro: MicroBatch) -> tuple[Tensor, dict[str, Tensor]]:
        better, worse = scores[0::2], scores[1::2]
        right = (better > worse).to(scores.dtype)
        return pairwise_loss(better, worse).sum() / pairs, {"accuracy": right.sum() / pairs}

    return loss
