"""All rows are rendered and tokenized before a model is loaded: wrong ones are named, overlong ones not cut unasked."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.tiny.models import CHATML, byte_tokenizer, chat_tokenizer

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.sections.data import Data, Source
from rlhf_trainer.data.dataset import Dataset, open_dataset
from rlhf_trainer.ops import row_check
from rlhf_trainer.ops.row_check import MOST_PROBLEMS, Fitting, RowChecker, check_all

Make = Callable[..., Dataset]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answered(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture
def made(tmp_path: Path) -> Make:
    def make(
        *sources: list[dict[str, Any]], kind: Any = "prompts", samples: int | None = None, **named: Any
    ) -> Dataset:
        paths = [tmp_path / f"rows{i}.jsonl" for i in range(len(sources))]
        for path, rows in zip(paths, sources, strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return open_dataset([Source(path=str(path), **named) for path in paths], kind, samples)

    return make


def fit(dataset: Dataset, kind: Any = "prompts", tokenizer: Any = None, **data: Any) -> Fitting:
    settings = Data(train=("unused",), **data)
    (fitting,) = check_all([RowChecker(dataset, kind, tokenizer or byte_tokenizer(), settings)])
    return fitting


def test_overlong_rows_are_refused_unless_the_manifest_says_what_to_do(made, tmp_path):
    dataset = made([{"prompt": "p" * n} for n in (1, 5, 4, 9)])
    with pytest.raises(InvalidJob) as caught:
        fit(dataset, maxPromptLength=4)
    assert str(caught.value) == (
        f"{tmp_path}/rows0.jsonl:2: is too long, as 2 of 4 rows are: 2 prompts beyond spec.data.maxPromptLength (4), "
        "the longest of 9 tokens; raise the limit, or set spec.data.overlong to drop or cut"
    )
    assert fit(dataset, maxPromptLength=9) == Fitting((), "")


def test_overlong_rows_are_left_out_and_counted(made, tmp_path):
    dataset = made([{"prompt": "p" * n} for n in (1, 5, 4, 9)], [{"prompt": "long!"}, {"prompt": "ok"}])
    fitting = fit(dataset, maxPromptLength=4, overlong="drop")
    assert list(fitting.left_out) == [1, 3, 4]
    assert (
        "3 of 6 rows are too long, 3 are left out (spec.data.overlong: drop): 3 prompts beyond"
        in fitting.message
    )
    remaining = dataset.without(fitting.left_out)
    assert [row.prompt for row in remaining] == ["p", "pppp", "ok"]
    assert [remaining.where(i) for i in range(3)] == [
        f"{tmp_path}/rows{f}.jsonl:{n}" for f, n in ((0, 1), (0, 3), (1, 2))
    ]
    assert (remaining.mixture.counts, remaining.mixture.samples) == ((2, 1), 3), (
        "an epoch is of the rows that stay"
    )
    assert remaining.checksums() != dataset.checksums(), "a resumed run notices that other rows are left out"
    with pytest.raises(InvalidJob, match=r"rows1\.jsonl: has no rows that are not too long"):
        dataset.without([4, 5])


def test_the_mixture_is_that_of_the_rows_that_stay(made):
    dataset = made([{"prompt": "a"}] * 9, [{"prompt": "b"}] * 9, weight=1.0, samples=12).without(range(8))
    assert (dataset.mixture.counts, dataset.mixture.shares) == ((1, 9), (6, 6))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_rows_that_stay_keep_their_order(tmp_path_factory, counts, data):
    folder = tmp_path_factory.mktemp("rows")
    for i, count in enumerate(counts):
        lines = [json.dumps({"prompt": f"{i}/{n}"}) + "\n" for n in range(count)]
        (folder / f"{i}.jsonl").write_text("".join(lines))
    dataset = open_dataset([Source(path=f"{folder}/{i}.jsonl") for i in range(len(counts))], "prompts")
    ends = {sum(counts[: i + 1]) - 1 for i in range(len(counts))}  # one of each source stays
    out = sorted(
        data.draw(st.sets(st.sampled_from(sorted(set(range(sum(counts))) - ends))))
        if len(ends) < sum(counts)
        else ()
    )
    remaining = dataset.without(out)
    assert [row.prompt for row in remaining] == [row.prompt for i, row in enumerate(dataset) if i not in out]


def test_a_conversation_is_cut_between_turns_or_left_out(made):
    tokenizer = chat_tokenizer()
    short, long = [user("Hi")], [user("a"), answered("b"), user("Hi")]
    dataset = made([{"prompt": short}, {"prompt": long}, {"prompt": [user("Hello there")]}])
    limit = len(tokenizer.apply_chat_template(short, add_generation_prompt=True, return_dict=False))
    fitting = fit(dataset, tokenizer=tokenizer, maxPromptLength=limit, overlong="cut")
    assert list(fitting.left_out) == [2], "its only question would be cut"
    assert (
        "2 of 3 rows are too long, 1 are left out and 1 are cut (spec.data.overlong: cut)" in fitting.message
    )
    assert list(fit(dataset, tokenizer=tokenizer, maxPromptLength=limit, overlong="drop").left_out) == [1, 2]


def test_overlong_responses_are_not_trained_on_without_an_end_unasked(made):
    pairs = [{"prompt": "p", "chosen": "a" * n, "rejected": "b"} for n in (2, 3)]
    dataset = made(pairs, kind="pairs")
    with pytest.raises(
        InvalidJob, match=r"1 response beyond spec\.data\.maxResponseLength \(3\), the longest of 4 tok"
    ):
        fit(dataset, "pairs", maxResponseLength=3)
    assert list(fit(dataset, "pairs", maxResponseLength=3, overlong="drop").left_out) == [1]


def test_a_row_that_the_template_refuses_is_named_with_its_place_and_value(made, tmp_path):
    strict = byte_tokenizer()
    strict.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
    )
    rows = [
        {"prompt": [user("Hi")]},
        {"prompt": [{"role": "system", "content": "S"}, user("Hi")]},
        {"prompt": [user("")]},
    ]
    dataset = made(rows + rows[1:2] * MOST_PROBLEMS)
    with pytest.raises(InvalidJob) as caught:
        fit(dataset, tokenizer=strict)
    problems = [str(problem) for problem in caught.value.problems]
    assert problems[0].startswith(
        f"{tmp_path}/rows0.jsonl:2: prompt: spec.data.chatTemplate: the template refuses "
    )
    assert 'refuses [{"role": "system", "content": "S"}' in problems[0]
    assert "no system" in problems[0]
    assert problems[-1] == f"{tmp_path}/rows0.jsonl: 1 more rows are invalid"


def test_many_rows_are_checked_in_several_processes_with_the_same_result(made, tmp_path, monkeypatch):
    rows = [{"prompt": "p" * (n % 7 + 1), "answer": "a"} for n in range(60)]
    dataset = made(rows, kind="responses")
    settings = Data(train=("unused",), maxPromptLength=5)
    checker = RowChecker(dataset, "responses", byte_tokenizer(), settings)
    alone = checker.check(range(60))
    monkeypatch.setattr(row_check, "CHUNK", 7)
    monkeypatch.setattr(row_check.os, "sched_getaffinity", lambda _: range(3))
    together = checker.check(range(60))
    assert together == alone
    assert len(alone.overlong) == sum(n % 7 > 4 for n in range(60))
    (tmp_path / "rows0.jsonl").write_text(json.dumps(rows[0]) + "\n" + "x" * 9999)
    assert checker.check(range(60)).problems[0].message.startswith("changed after the file was opened")


def test_a_row_has_the_teacher_that_it_names_or_that_of_its_source(made):
    rows = [{"prompt": "a"}, {"prompt": "b", "teacher": "right"}]
    dataset = made(rows, teacher="left")
    assert [dataset[number].model_dump()["teacher"] for number in range(2)] == ["left", "right"]
    assert "teacher" not in made(rows)[0].model_dump()


def test_a_row_without_a_teacher_of_the_job_is_refused_with_its_place(made, tmp_path):
    dataset = made([{"prompt": "a", "teacher": "left"}, {"prompt": "b"}, {"prompt": "c", "teacher": "up"}])
    settings, names = Data(train=("unused",)), ["left", "right"]
    with pytest.raises(InvalidJob) as caught:
        check_all([RowChecker(dataset, "prompts", byte_tokenizer(), settings, teachers=names)])
    there = "one of spec.distillation.teachers: left, right"
    assert [str(problem) for problem in caught.value.problems] == [
        f"{tmp_path}/rows0.jsonl:2: teacher: is missing: it names {there}; add it to the row, or to its source in "
        "spec.data.sources",
        f"{tmp_path}/rows0.jsonl:3: teacher: must be {there}; got 'up'",
    ]
    assert fit(dataset) == Fitting((), ""), "no teacher is asked about held-out rows"


def test_a_step_with_its_separator_is_named_with_its_row(made, tmp_path):
    rows = [{"prompt": "p", "steps": ["a", "b\nc"], "labels": [1, 0]} for _ in range(2)]
    dataset = made(rows, kind="stepwise")
    with pytest.raises(InvalidJob) as caught:
        fit(dataset, "stepwise")
    first = f"{tmp_path}/rows0.jsonl:1: steps[1]: has spec.data.stepSeparator, '\\n', which ends steps"
    assert str(caught.value).startswith(first)
    assert len(caught.value.problems) == 2
    assert fit(dataset, "stepwise", stepSeparator=";") == Fitting((), "")


def test_a_separator_that_is_no_text_of_the_tokens_is_one_error_whatever_rows_there_are(made):
    """The tokens are asked once; a batch of a step no more."""
    dataset = made([{"prompt": "p", "steps": ["a"], "labels": [1]} for _ in range(3)], kind="stepwise")
    settings, tokenizer = Data(train=("unused",), stepSeparator=";<eos>"), chat_tokenizer()
    with pytest.raises(InvalidJob) as caught:
        check_all([RowChecker(dataset, "stepwise", tokenizer, settings)] * 2)
    (problem,) = caught.value.problems
    assert str(problem).startswith("spec.data.stepSeparator: is no text of the tokenizer's")
