"""Supervised fine-tuning and reward modelling: which tokens, and losses computed by hand."""

import math

import pytest
import torch
from tests.support.tiny.models import byte_tokenizer
from tests.unit.api.manifests import job

from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.dataset.rows import AnswerRow, LabeledRow, PairRow
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.field_types import Frozen
from rlhf_api.sections.data import Data
from rlhf_trainer.ops import LOSSES, OpContext
from rlhf_trainer.ops.datasets import given_columns
from rlhf_trainer.tensors.batches import MicroBatch
from rlhf_trainer.tensors.columns import Columns
from rlhf_trainer.tensors.records import Sequences

EOS = 256
CONTEXT = OpContext(job().spec, Frozen())
DATA = Data(train=("unused",), maxPromptLength=3, maxResponseLength=4)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def ids(tokenizer, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def test_an_answer_follows_its_prompt_and_ends(tokenizer):
    rows = [AnswerRow(prompt="abcde", answer="xy"), AnswerRow(prompt="f", answer="0123456")]
    columns, metrics = given_columns("responses", rows, tokenizer, DATA)
    sequences = columns.sequences
    assert sequences.row(0).tolist() == [*ids(tokenizer, "cde"), *ids(tokenizer, "xy"), EOS]
    assert sequences.row(1).tolist() == [*ids(tokenizer, "f"), *ids(tokenizer, "0123")], (
        "cut, so it has no end"
    )
    assert sequences.prompt_lengths.tolist() == [3, 1]
    assert columns.mask is None, "all of a response is trained on"
    assert metrics == {"prompts_cut": 1, "responses_cut": 1}


def test_pairs_become_rows_better_first(tokenizer):
    rows = [
        PairRow(prompt="p", pos_answers=["a", "b"], neg_answers=["c", "d"]),
        PairRow(prompt="q", pos_answers=["e"], neg_answers=["fgh"]),
    ]
    sequences = given_columns("pairs", rows, tokenizer, DATA)[0].sequences
    texts = [tokenizer.decode(sequences.row(i), skip_special_tokens=True) for i in range(len(sequences))]
    assert texts == ["pa", "pc", "pb", "pd", "qe", "qfgh"]
    assert all(sequences.row(i)[-1] == EOS for i in range(len(sequences)))


def test_both_responses_of_a_graded_pair_have_its_margin(tokenizer):
    rows = [
        checked_row(row, "graded", lambda: "row")
        for row in (
            {"prompt": "p", "pos_answers": ["a", "b"], "neg_answers": ["c", "d"], "margin": 2},
            {"prompt": "q", "chosen": "e", "rejected": "f", "margin": 0.5},
        )
    ]
    columns = given_columns("graded", rows, tokenizer, DATA)[0]
    assert columns["margin"].tolist() == [2, 2, 2, 2, 0.5, 0.5]
    assert len(columns) == 6


@pytest.mark.parametrize("margin", [float("nan"), float("inf"), True])
def test_a_margin_is_a_finite_number(margin):
    """As of a function that returns rows: files of JSON have no others."""
    row = {"prompt": "p", "chosen": "a", "rejected": "b", "margin": margin}
    with pytest.raises(InvalidJob, match=r"^rows, line 1: margin: must be a"):
        checked_row(row, "graded", lambda: "rows, line 1")


def test_labeled_rows_are_followed_by_each_prompt_with_the_next_answer(tokenizer):
    rows = [
        LabeledRow(prompt=p, answer=a, label=good)
        for p, a, good in (("p", "ab", True), ("q", "c", False), ("r", "def", True))
    ]
    columns, metrics = given_columns("labeled", rows, tokenizer, DATA)
    sequences = columns.sequences
    texts = [tokenizer.decode(sequences.row(i), skip_special_tokens=True) for i in range(len(sequences))]
    assert texts == ["pab", "qc", "rdef", "pc", "qdef", "rab"]
    assert columns["label"].tolist() == [1, -1, 1, 0, 0, 0]
    assert metrics == {"prompts_cut": 0, "responses_cut": 0}


@pytest.mark.parametrize("label", [1, "true", None])
def test_a_label_is_true_or_false(label):
    row = {"prompt": "p", "answer": "a"} | ({} if label is None else {"label": label})
    problem = r"^rows, line 1: label: (is missing|must be a valid boolean)"
    with pytest.raises(InvalidJob, match=problem):
        checked_row(row, "labeled", lambda: "rows, line 1")


def test_the_loss_of_answers_is_their_mean_negative_log_likelihood():
    sequences = Sequences.pack([((1, 2), (3, 4)), ((5,), (6,)), ((7,), (8, 9, 10))])
    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.25, -0.75, -1.5])
    loss = LOSSES["likelihood"](Columns(sequences), CONTEXT)
    total = 0.0
    for rows in ([2, 0], [1], []):  # however the rows fall into micro-batches
        micro = MicroBatch.build(sequences, rows, pad_token_id=0)
        value, named = loss(logprobs[micro.response_index], micro)
        total += value.item()
        assert named == {}
    assert total == pytest.approx(6.0 / 6)


def test_the_loss_of_pairs_is_the_likelihood_that_the_better_wins():
    sequences = Sequences.pack([((1,), (2,))] * 6)
    scores = torch.tensor([1.0, 0.0, -2.0, 1.0, 0.5, 0.5])
    loss = LOSSES["preference"](Columns(sequences), CONTEXT)
    total, right = 0.0, 0.0
    for rows in ([2, 3], [0, 1, 4, 5], []):
        micro = MicroBatch.build(sequences, rows, pad_token_id=0)
        value, named = loss(scores[micro.rows], micro)
        total, right = total + value.item(), right + named["accuracy"].item()
    assert total == pytest.approx(sum(math.log1p(math.exp(-d)) for d in (1.0, -3.0, 0.0)) / 3)
    assert right == pytest.approx(1 / 3), "a draw is not right"
