"""Tasks of race.py: their rows, and the score of an answer, which is reasoning-gym's own for them.

    .venv/bin/python benchmarks/jobs/race_tasks.py runs/race

needs `pip install reasoning-gym`, and makes train.jsonl and held_out-TASK.jsonl, which have no question in common. A
race needs no more than these files.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TASKS: dict[str, dict[str, Any]] = {
    "gcd": {"min_value": 1, "max_value": 30},
    "letter_counting": {"min_words": 3, "max_words": 10},
    "products": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
SYSTEM = "Reply with the answer alone."
TRAIN, HELD_OUT = "train.jsonl", "held_out-"
SHOWN, JUDGED, TRAINED, DRAWN = 2, 32, 160, 6000
"""Questions of a task: shown with their answers before each other; held out; trained on, if there are so many; and
drawn, some of which are the same."""
OFTEN = 4
"""An answer has at most one in so many of a task's rows, so that none is right by itself."""


def score(
    prompts: Sequence[Any],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """1 for the answer, for one among words its share of the characters, or else 0."""
    texts = [response.strip() for response in responses]
    return [
        len(row["answer"]) / len(text) if text and row["answer"] in text else 0.0
        for text, row in zip(texts, rows, strict=True)
    ]


def exact(
    prompts: Sequence[Any],  # noqa: ARG001
    responses: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> list[float]:
    """1 for the answer and nothing else, or else 0."""
    return [float(text.strip() == row["answer"]) for text, row in zip(responses, rows, strict=True)]


def held_out(folder: Path) -> dict[str, Path]:
    """The files of held-out rows, by task."""
    return {file.stem.removeprefix(HELD_OUT): file for file in sorted(folder.glob(f"{HELD_OUT}*.jsonl"))}


def make_rows(folder: Path) -> None:
    """Raises ValueError where a score is not reasoning-gym's."""
    train = list[dict[str, Any]]()
    folder.mkdir(parents=True, exist_ok=True)
    for task, settings in TASKS.items():
        pairs = questions(task, settings)
        shown = [message for pair in pairs[:SHOWN] for message in turn(*pair)]
        rows = [
            {
                "prompt": [{"role": "system", "content": SYSTEM}, *shown, turn(question, answer)[0]],
                "task": task,
                "answer": answer,
            }
            for question, answer in pairs[SHOWN:]
        ]
        write(folder / f"{HELD_OUT}{task}.jsonl", rows[:JUDGED])
        train += rows[JUDGED:]
    random.Random(0).shuffle(train)
    write(folder / TRAIN, train)


def turn(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def questions(task: str, settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Different questions of a task, with their answers."""
    import reasoning_gym

    pairs, answers, size = list[tuple[str, str]](), Counter[str](), SHOWN + JUDGED + TRAINED
    dataset = reasoning_gym.create_dataset(task, size=DRAWN, seed=1, **settings)
    for question, entry in {entry["question"]: entry for entry in dataset}.items():
        answer = entry["answer"]
        if answers[answer] == size // OFTEN or len(pairs) == size:
            continue
        answers[answer] += 1
        for text in (answer, f"It is {answer}.", "none"):
            if score([], [text], [{"answer": answer}]) != [dataset.score_answer(text, entry)]:
                raise ValueError(f"{task} scores {text!r} otherwise than by the answer's share")
        pairs.append((question, answer))
    random.Random(0).shuffle(pairs)  # as frequent answers are used up first
    return pairs


def write(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: race_tasks.py FOLDER")
    make_rows(Path(sys.argv[1]))
