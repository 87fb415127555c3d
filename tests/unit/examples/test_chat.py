"""The shipped data of examples/chat: no held-out question is trained on, and answers are right."""

import importlib
import json
import operator
import re
from pathlib import Path
from types import ModuleType

import pytest
from examples.chat.judge import correct

from rlhf_api.manifest.load import load

EXAMPLE = Path(__file__).parents[3] / "examples" / "chat"
SIGNS = {"+": operator.add, "-": operator.sub}


@pytest.fixture(scope="module")
def tasks() -> ModuleType:
    pytest.importorskip("reasoning_gym")
    return importlib.import_module("examples.chat.tasks")


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text().splitlines()]


def questions(name: str) -> list[str]:
    return [row["prompt"][0]["content"] for row in rows(name)]


def test_no_held_out_question_is_trained_on():
    train, held_out = questions("train"), questions("heldout")
    assert len(held_out) == 64
    assert len({*train, *held_out}) == len(train) + len(held_out)


def test_the_answers_are_right():
    for row in (*rows("train"), *rows("heldout")):
        question = row["prompt"][0]["content"]
        a, sign, b = re.fullmatch(r"Calculate (\d+) ([+-]) (\d+)\.", question).groups()
        assert row["answer"] == str(SIGNS[sign](int(a), int(b)))
        responses = [
            f"{a} {sign} {b} = {row['answer']}",
            row["answer"],
            f"{question} = {row['answer']}.",
            "=",
            "",
        ]
        assert correct([question] * 5, responses, [row] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_the_rows_are_those_that_reasoning_gym_makes(tasks):
    assert tasks.rows() == [*rows("heldout"), *rows("train")]


def test_the_reward_is_that_of_the_task(tasks):
    row = rows("train")[0]
    responses = [f"= {row['answer']}", f"= {row['answer']} apples", "= none"]
    exact, among_words, wrong = tasks.score([""] * 3, responses, [row] * 3)
    assert exact == 1.0 > among_words > wrong == 0.0


def test_the_manifest_is_valid():
    assert load(EXAMPLE / "grpo.yaml").spec.model.lora.policy.rank == 16
