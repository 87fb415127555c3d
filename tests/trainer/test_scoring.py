"""Scores: functions, models and both, over real HTTP, by servers that come and go."""

import numpy as np
import pytest
import torch
from tests.support.models import byte_tokenizer
from transformers import LlamaConfig, LlamaForSequenceClassification

from rlhf_api.problems import InvalidJob
from rlhf_trainer.models.load import create_tokenizer
from rlhf_trainer.records import Sequences
from rlhf_trainer.scoring.rewards import FunctionScorer, ModelScorer, import_function, weighted

TOKENIZER = byte_tokenizer()
EOS = TOKENIZER.eos_token_id
TEXTS = [("good ", "morning"), ("a ", "b"), ("bad ", "day to you all"), ("x", "yz")]
ROWS = [{"prompt": prompt, "grade": i} for i, (prompt, _) in enumerate(TEXTS)]
WHERE = "spec.reward.functions[0].function"


def ids(text: str) -> list[int]:
    return TOKENIZER(text)["input_ids"]


SEQUENCES = Sequences.pack([(ids(prompt), [*ids(answer), EOS]) for prompt, answer in TEXTS])


def lengths(_prompts, responses, _rows):
    return [float(len(response)) for response in responses]


def grades(prompts, _responses, rows):
    assert [row["prompt"] for row in rows] == prompts
    return [row["grade"] for row in rows]


def scorer(function) -> FunctionScorer:
    return FunctionScorer(WHERE, function, TOKENIZER)


def test_functions_see_texts_and_rows_and_are_weighted():
    both = [(2.0, scorer(lengths)), (-1.0, scorer(grades))]
    assert weighted(both, SEQUENCES, ROWS).tolist() == [14.0, 1.0, 26.0, 1.0]
    assert weighted([], SEQUENCES, ROWS).tolist() == [0.0] * 4


def test_scores_may_come_from_numpy():
    found = scorer(lambda *_: np.arange(4, dtype=np.float32))(SEQUENCES, ROWS)
    assert found.tolist() == [0, 1, 2, 3]
    assert found.dtype == torch.float32


def raises(_prompts, _responses, rows):
    return [rows[0]["no such key"]]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, r"the function raised KeyError: 'no such key' \(.*test_scoring\.py:\d+\)"),
        (lambda *_: [1.0], "returned 1 scores for 4 answers"),
        (lambda *_: None, "returned a NoneType, not a list of one number for each answer"),
        (lambda *_: 0.5, "returned a float, not a list"),
        (lambda *_: [0.0, float("nan"), 0, 0], "scores must be finite numbers; got NaN for 'b'"),
        (lambda *_: [0.0, 1.0, float("inf"), 0], "finite numbers; got Infinity for 'day to you all'"),
        (lambda *_: ["1", 0, 0, 0], "finite numbers; got '1' for 'morning'"),
    ],
)
def test_what_functions_get_wrong_is_said_with_the_field(function, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        scorer(function)(SEQUENCES, ROWS)
    assert [problem.where for problem in caught.value.problems] == [WHERE]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module:f", "'no_such_module:f' cannot be imported: ModuleNotFoundError"),
        ("json:no_such_function", "cannot be imported: AttributeError"),
        ("json:decoder", "is a module, not a function"),
    ],
)
def test_a_function_that_is_not_there(path, message):
    with pytest.raises(InvalidJob, match=message) as caught:
        import_function(path, WHERE)
    assert caught.value.problems[0].where == WHERE


@pytest.fixture(scope="module")
def model() -> LlamaForSequenceClassification:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
        initializer_range=0.3,
        num_labels=1,
        pad_token_id=None,
    )
    return LlamaForSequenceClassification(config).eval()


def one_by_one(model, rows: list[list[int]]) -> list[float]:
    with torch.no_grad():
        return [model(torch.tensor([row])).logits.item() for row in rows]


def test_a_model_scores_as_it_does_alone(model):
    rows = [SEQUENCES.row(i).tolist() for i in range(4)]
    for budget in (1, 40, 1000):
        found = ModelScorer(model, TOKENIZER, byte_tokenizer(), budget)(SEQUENCES, ROWS)
        assert found.tolist() == pytest.approx(one_by_one(model, rows), abs=1e-5)


def test_a_model_with_another_vocabulary_reads_the_text(model):
    own = create_tokenizer([a + b for a, b in TEXTS] * 3, 290)
    cut = Sequences.pack([(ids(prompt), ids(answer)) for prompt, answer in TEXTS])
    for sequences, end in ((SEQUENCES, [own.eos_token_id]), (cut, [])):
        rows = [[*own(a)["input_ids"], *own(b)["input_ids"], *end] for a, b in TEXTS]
        assert any(len(row) != len(ids(a + b)) + len(end) for row, (a, b) in zip(rows, TEXTS, strict=True))
        found = ModelScorer(model, TOKENIZER, own, 60)(sequences, ROWS)
        assert found.tolist() == pytest.approx(one_by_one(model, rows), abs=1e-5)


def test_what_another_vocabulary_makes_too_long_loses_its_beginning(model):
    own = create_tokenizer(["unrelated"], 300)
    own.add_tokens(["<unused>"])
    sequences = Sequences.pack([(ids("p" * 30), [*ids("an answer"), EOS])])
    row = [*own("p" * 30)["input_ids"], *own("an answer")["input_ids"], own.eos_token_id][-32:]
    found = ModelScorer(model, TOKENIZER, own, 60)(sequences, ROWS[:1])
    assert found.tolist() == pytest.approx(one_by_one(model, [row]), abs=1e-5)
