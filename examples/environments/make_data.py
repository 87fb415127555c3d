"""Writes the data sets of these examples.

    python make_data.py [DIRECTORY]

The same files every time. Policies that are fine-tuned on the first file of each pair know what a turn looks like, and
no more: half of the guesses heed the replies, half of the questions are answered without the calculator, and two
programs in three are wrong.

    guess_sft.jsonl          {"prompt", "answer"}: a game so far, and a guess
    guess.jsonl              {"prompt", "number"}: games to play
    calculator_sft.jsonl     {"prompt", "answer"}: a question and a call of the tool, or any number; or the tool's reply
                             too, and the result
    calculator.jsonl         {"prompt", "result"}
    code_sft.jsonl           {"prompt", "answer"}: a task, maybe with a program that failed a test, and a program
    code.jsonl               {"prompt", "tests"}: tasks, and what their program must return for some arguments
    ranges.jsonl             {"prompt", "number"}: games for a chat model, each with a game of one turn before it

    guess_heldout.jsonl and so on: to evaluate with
"""

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SEED = 20261129
NUMBERS, TURNS = range(1, 10), 4
FACTORS = range(2, 10)
SFT, GAMES = 3000, 500
PROGRAMS: dict[str, tuple[str, Callable[[int], int]]] = {
    "double": ("x * 2", lambda x: x * 2),
    "square": ("x * x", lambda x: x * x),
    "next": ("x + 1", lambda x: x + 1),
    "previous": ("x - 1", lambda x: x - 1),
    "negate": ("- x", lambda x: -x),
    "half": ("x // 2", lambda x: x // 2),
}
ARGUMENTS = 3, 5, 8

Row = dict[str, Any]


def guesses(rng: random.Random) -> Iterator[Row]:
    """Turns to imitate, after up to three guesses and the replies to them."""
    for count in range(SFT):
        number, text, possible = rng.choice(NUMBERS), "guess :", NUMBERS
        for _ in range(rng.randrange(TURNS)):
            guess = rng.choice(possible)
            if guess < number:
                text, possible = f"{text} {guess} ; higher :", range(guess + 1, possible.stop)
            elif guess > number:
                text, possible = f"{text} {guess} ; lower :", range(possible.start, guess)
        yield {"prompt": text, "answer": f" {rng.choice(possible if count % 2 else NUMBERS)} ;"}


def question(a: int, b: int) -> list[Row]:
    return [{"role": "user", "content": f"{a} times {b} ?"}]


def row_of(a: int, b: int) -> Row:
    return {"prompt": question(a, b), "result": a * b}


def call(a: int, b: int) -> str:
    """A call of the tool, as Qwen's and Hermes' models write it."""
    arguments = json.dumps({"name": "multiply", "arguments": {"a": a, "b": b}})
    return f"<tool_call>{arguments}</tool_call>"


def calculations(rng: random.Random) -> Iterator[Row]:
    """Turns to imitate."""
    for number in range(SFT * 2 // 3):
        a, b = rng.choice(FACTORS), rng.choice(FACTORS)
        match number % 4:
            case 0:
                yield {"prompt": question(a, b), "answer": call(a, b)}
            case 1:
                yield {"prompt": question(a, b), "answer": str(rng.choice(FACTORS) * rng.choice(FACTORS))}
            case _:
                called = {"role": "assistant", "content": call(a, b)}
                reply = {"role": "tool", "content": str(a * b)}
                yield {"prompt": [*question(a, b), called, reply], "answer": str(a * b)}


def programs(rng: random.Random) -> Iterator[Row]:
    """Turns to imitate, half of them after one that failed."""
    texts = [text for text, _ in PROGRAMS.values()]
    for count in range(SFT // 2):
        name = rng.choice([*PROGRAMS])
        right, run = PROGRAMS[name]
        text = f"{name} :"
        if count % 2:
            wrong, argument = rng.choice([each for each in texts if each != right]), rng.choice(ARGUMENTS)
            text = f"{text} {wrong} ; {argument} gives {run(argument)} :"
        yield {"prompt": text, "answer": f" {right if rng.random() < 0.2 else rng.choice(texts)} ;"}


def task(name: str) -> Row:
    """A task with its unit tests, by each of which any two programs differ."""
    _, run = PROGRAMS[name]
    return {"prompt": f"{name} :", "tests": [[x, run(x)] for x in ARGUMENTS]}


def game(number: int) -> Row:
    """A game, after one of a smaller range, without which the model rarely answers with a number alone."""
    contents = ("system", "Guess."), ("user", "A number from 1 to 3:"), ("assistant", "2")
    opening = ("user", f"A number from {NUMBERS[0]} to {NUMBERS[-1]}:")
    return {
        "prompt": [{"role": role, "content": text} for role, text in (*contents, opening)],
        "number": number,
    }


def data_sets() -> Iterator[tuple[str, list[Row]]]:
    """The rows of every file."""
    rng = random.Random(SEED)
    yield "guess_sft.jsonl", [*guesses(rng)]
    yield "guess.jsonl", [{"prompt": "guess :", "number": rng.choice(NUMBERS)} for _ in range(GAMES)]
    yield "guess_heldout.jsonl", [{"prompt": "guess :", "number": number} for number in NUMBERS]
    yield "calculator_sft.jsonl", [*calculations(rng)]
    pairs = [(rng.choice(FACTORS), rng.choice(FACTORS)) for _ in range(GAMES)]
    yield "calculator.jsonl", [row_of(a, b) for a, b in pairs]
    yield "calculator_heldout.jsonl", [row_of(a, b) for a in FACTORS for b in FACTORS]
    yield "code_sft.jsonl", [*programs(rng)]
    yield "code.jsonl", [task(rng.choice([*PROGRAMS])) for _ in range(GAMES)]
    yield "code_heldout.jsonl", [task(name) for name in PROGRAMS]
    yield "ranges.jsonl", [game(rng.choice(NUMBERS)) for _ in range(GAMES)]
    yield "ranges_heldout.jsonl", [game(number) for number in NUMBERS]


def write(directory: Path) -> None:
    for name, rows in data_sets():
        (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
