"""Rows whose response has steps: at which tokens their labels stand, and which rows are refused."""

import pytest
from tests.support.tiny.models import byte_tokenizer, chat_tokenizer

from rlhf_api.dataset.checked_row import checked_row
from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Data
from rlhf_trainer.data.steps import step_ends
from rlhf_trainer.ops.datasets import given_columns


def data(separator: str = "\n", longest: int = 40) -> Data:
    return Data(train=("unused",), maxResponseLength=longest, stepSeparator=separator)


def row(**fields: object):
    return checked_row({"prompt": "p"} | fields, "stepwise", lambda: "rows, line 1")


def labels_of(made: object, *, separator: str = "\n", longest: int = 40) -> list[tuple[str, float]]:
    """The characters at which labels stand, and the labels."""
    tokenizer = byte_tokenizer()
    columns, _ = given_columns("stepwise", [made], tokenizer, data(separator, longest))
    sequences = columns.sequences
    response = sequences.row(0)[sequences.prompt_lengths[0] :].tolist()
    pairs = zip(response, columns["step_label"].tolist(), strict=True)
    return [(tokenizer.decode([token]), label) for token, label in pairs if label >= 0]


@pytest.mark.parametrize("name", ["steps", "completions"])
def test_a_label_stands_at_the_last_token_of_its_step(name):
    made = row(**{name: ["ab", "c d", "e"]}, labels=[True, 0.25, 0])
    end = byte_tokenizer().eos_token
    assert labels_of(made) == [("\n", 1.0), ("\n", 0.25), (end, 0.0)]
    assert labels_of(made, separator=";--") == [("-", 1.0), ("-", 0.25), (end, 0.0)]


def test_the_last_label_of_a_conversation_stands_at_the_end_of_its_turn():
    made = row(prompt=[{"role": "user", "content": "how?"}], steps=["ab", "c"], labels=[False, True])
    columns, _ = given_columns("stepwise", [made], tokenizer := chat_tokenizer(), data())
    labels = columns["step_label"].tolist()
    response = columns.sequences.row(0)[columns.sequences.prompt_lengths[0] :].tolist()
    assert [tokenizer.decode([token]) for token in response] == ["a", "b", "\n", "c", "<|im_end|>"]
    assert labels == [-1.0, -1.0, 0.0, -1.0, 1.0]


def test_steps_that_are_cut_off_have_no_label():
    made = row(steps=["ab", "cd", "ef"], labels=[True, False, True])
    assert labels_of(made, longest=6) == [("\n", 1.0), ("\n", 0.0)]
    assert labels_of(made, longest=5) == [("\n", 1.0)]
    assert labels_of(made, longest=2) == []


@pytest.mark.parametrize(
    ("texts", "separator", "ends"),
    [
        (["a", "b", "\n", "c", ""], "\n", [2, 4]),
        (["a.\n\n", "b", "\n", "\nc", ""], "\n\n", [0, 3, 4]),
        (["a", "\n", "\n", "b", "\n", ""], "\n", [1, 5]),
        (["a", ""], "\n", [1]),
        ([""], "\n", [0]),
        (["\n", "\n"], "\n", [1]),
        (["a\nb\n", "c"], "\n", [0, 1]),
    ],
)
def test_steps_end_where_their_separator_does(texts, separator, ends):
    """In the token with its last character, whatever it is merged with; blank steps are none. The last one ends with
    the response: one that stops behind a separator does not evade judgement of its end."""
    assert step_ends(texts, separator) == ends


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"steps": ["a", "b"], "labels": [True]}, "steps and labels must be equally long; got 2 and 1"),
        ({"completions": ["a"], "labels": []}, "completions and labels must be equally long; got 1 and 0"),
        ({"steps": ["a", " "], "labels": [True, True]}, "steps.1: a step must have text"),
        ({"steps": ["a\ud800"], "labels": [1]}, "steps.0: must be Unicode text"),
        ({"steps": [], "labels": []}, "steps: "),
        ({"steps": ["a"], "labels": [1.5]}, "labels.0: must be"),
        ({"steps": ["a"], "labels": ["good"]}, "labels.0: must be"),
        ({"steps": ["a"]}, "labels: is missing"),
    ],
)
def test_rows_without_a_label_for_each_step_are_refused(fields, says):
    with pytest.raises(InvalidJob, match=says):
        row(**fields)


@pytest.mark.parametrize(("steps", "number"), [(["a\nb", "c"], 0), (["a", "b\n"], 1), (["a", "\nb"], 1)])
def test_a_step_with_the_separator_is_refused(steps, number):
    with pytest.raises(
        InvalidJob, match=rf"steps\[{number}\]: has spec.data.stepSeparator, '.n', which ends"
    ):
        labels_of(row(steps=steps, labels=[True, True]))
    with pytest.raises(InvalidJob, match=r"steps\[0\]"):
        labels_of(row(steps=["a-", "b"], labels=[True, True]), separator="--")
