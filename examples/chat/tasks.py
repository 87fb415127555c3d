"""Verifiable tasks: their rows, and the reward of a response. Both are reasoning-gym's (`pip install reasoning-gym`).

    python -m examples.chat.tasks

makes `train.jsonl` and `heldout.jsonl` again, which have no question in common.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import reasoning_gym

from .judge import result

TASK = "basic_arithmetic"
SETTINGS: dict[str, Any] = {
    "min_terms": 2,
    "max_terms": 2,
    "min_digits": 1,
    "max_digits": 1,
    "operators": ["+", "-"],
    "allow_parentheses": False,
    "allow_negation": False,
}
HELD_OUT = 64
_score_of = cache(reasoning_gym.get_score_answer_fn)


def score(
    prompts: Sequence[str],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """reasoning-gym's own, of the result: 1 for the answer, and for one among words its share of the characters."""
    return [
        _score_of(row["task"])(result(response), row) for response, row in zip(responses, rows, strict=True)
    ]


def rows() -> list[dict[str, Any]]:
    """All questions of the task, each once, as conversations."""
    dataset = reasoning_gym.create_dataset(TASK, size=4000, seed=1, **SETTINGS)
    by_question = {entry["question"]: entry for entry in dataset}
    return [
        {"prompt": [{"role": "user", "content": question}], "task": TASK, "answer": entry["answer"]}
        for question, entry in by_question.items()
    ]


if __name__ == "__main__":
    made, here = rows(), Path(__file__).parent
    for name, part in (("heldout", made[:HELD_OUT]), ("train", made[HELD_OUT:])):
        text = "".join(json.dumps(row) + "\n" for row in part)
        (here / f"{name}.jsonl").write_text(text, encoding="utf-8")
