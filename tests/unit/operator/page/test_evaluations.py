"""Held-out prompts over time, from what evaluations have kept of responses."""

from pathlib import Path

import pytest
from tests.support.run_folders import write_run

from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog


def evaluate(
    step: object, *answers: object, name: str = "easy", prompt: object = "2+2", score: object = 0.5
) -> dict:
    samples = [{"prompt": prompt, "answer": each, "score": score} for each in answers]
    return {"step": step, "set": name, "mean": 0.5, "samples": samples}


def list_prompts(folder: Path, *lines: dict) -> list[dict]:
    write_run(folder, evaluations=lines)
    catalog = Catalog([folder])
    (run,) = catalog.runs()
    return answer(catalog, f"/runs/{run.id}/evaluations", {})["prompts"]


def test_a_prompts_responses_are_together_the_newest_first(tmp_path):
    prompts = list_prompts(
        tmp_path, evaluate(0, "5"), evaluate(0, "x", name="hard", score=None), evaluate(10, "4"), {"step": 10}
    )
    assert prompts == [
        {
            "set": "easy",
            "prompt": "2+2",
            "responses": [
                {"step": 10, "response": "4", "score": 0.5},
                {"step": 0, "response": "5", "score": 0.5},
            ],
        },
        {"set": "hard", "prompt": "2+2", "responses": [{"step": 0, "response": "x", "score": None}]},
    ]


def test_of_a_conversation_the_last_message_is_the_prompt(tmp_path):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    (prompt,) = list_prompts(tmp_path, evaluate(1, "hi", prompt=messages))
    assert prompt["prompt"] == "hello"


@pytest.mark.parametrize(
    "line",
    [
        evaluate("1", "a"),
        evaluate(1, 7),
        evaluate(1, "a", prompt=[]),
        evaluate(1, "a", prompt=[{"content": ["image"]}]),
        {"step": 1, "set": "easy", "samples": "many"},
        {"step": 1, "set": "easy", "samples": ["one"]},
        {"step": 1, "set": "easy", "samples": [{}]},
    ],
)
def test_what_is_no_sample_is_left_out(line, tmp_path):
    assert list_prompts(tmp_path, line) == []


def test_a_score_that_is_no_number_is_none(tmp_path):
    (prompt,) = list_prompts(tmp_path, evaluate(1, "a", score="high"))
    assert prompt["responses"][0]["score"] is None
