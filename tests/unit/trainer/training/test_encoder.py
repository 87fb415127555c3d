"""Rows of the next step are encoded while models are updated; a run trains on what it would have without that."""

import threading

import pytest
from tests.support.tiny.models import byte_tokenizer

from rlhf_api.dataset.rows import AnswerRow
from rlhf_api.errors.problem import InvalidJob, Problem
from rlhf_api.sections.data import Data
from rlhf_trainer.ops.datasets import given_columns
from rlhf_trainer.training.encoder import Encoder

ROWS = [AnswerRow(prompt=f"p{i}", answer="a" * (1 + i)) for i in range(8)]
TOKENIZER = byte_tokenizer()


def encode(rows):
    return given_columns("responses", rows, TOKENIZER, Data(train=("unused.jsonl",)))


def test_rows_that_are_needed_next_are_encoded_meanwhile():
    began, goes_on, encoded = threading.Event(), threading.Event(), []

    def slowly(rows):
        began.set()
        assert goes_on.wait(60)
        encoded.append([row.prompt for row in rows])
        return encode(rows)

    encoder = Encoder(ROWS, slowly)
    encoder.begin([(0, 3), (0, 1)])
    assert began.wait(60), "begin does not wait for it"
    goes_on.set()
    columns, metrics = encoder.take([(0, 3), (0, 1)])
    expected, counted = encode([ROWS[3], ROWS[1]])
    assert columns.sequences.tokens.tolist() == expected.sequences.tokens.tolist()
    assert metrics == counted
    assert encoded == [["p3", "p1"]], "once"


def test_after_a_rollback_other_rows_are_taken():
    encoder = Encoder(ROWS, encode)
    encoder.begin([(0, 3)])
    columns, _ = encoder.take([(0, 5)])
    assert columns.sequences.tokens.tolist() == encode([ROWS[5]])[0].sequences.tokens.tolist()


def test_a_bad_row_ends_the_step_that_needs_it_and_none_before():
    def refuse(rows):
        if rows == [ROWS[2]]:
            raise InvalidJob([Problem("rows.jsonl:3", "is bad")])
        return encode(rows)

    encoder = Encoder(ROWS, refuse)
    encoder.begin([(0, 2)])
    encoder.encode([ROWS[0]])
    with pytest.raises(InvalidJob, match=r"rows\.jsonl:3: is bad"):
        encoder.take([(0, 2)])
