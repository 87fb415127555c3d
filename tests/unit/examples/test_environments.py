"""The shipped data of examples/environments: what its script makes; and its games."""

import json
from pathlib import Path

import pytest
from examples.environments import make_data
from examples.environments.calculator import Calculator
from examples.environments.guess import Guess

EXAMPLE = Path(make_data.__file__).parent


def test_the_script_makes_the_shipped_files(tmp_path):
    make_data.write(tmp_path)
    made = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_bytes() for file in EXAMPLE.glob("*.jsonl")}


def test_half_of_the_guesses_to_imitate_heed_no_reply():
    lost = 0
    rows = [json.loads(line) for line in (EXAMPLE / "guess_sft.jsonl").read_text().splitlines()]
    for row in rows:
        text = row["prompt"].removeprefix("guess :").split(" :")[:-1]
        pairs = [part.split(" ; ") for part in text]
        low = max((int(number) for number, reply in pairs if reply == "higher"), default=0)
        high = min((int(number) for number, reply in pairs if reply == "lower"), default=10)
        lost += not low < int(row["answer"].split()[0]) < high
    assert 0.1 < lost / len(rows) < 0.3


def say(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("turns", "replies"),
    [
        ([" 5", " 7", " 6"], [(" higher :", 0.0, False), (" lower :", 0.0, False), ("", 1.0, True)]),
        ([" 9", " 9"], [(" lower :", 0.0, False), ("", 0.0, True)]),
        ([" 5", " 4"], [(" higher :", 0.0, False), ("", 0.0, True)]),
        ([" six"], [("", 0.0, True)]),
        ([" 10"], [("", 0.0, True)]),
    ],
)
def test_a_guess_that_a_reply_rules_out_is_lost(turns, replies):
    game = Guess(highest=9)
    assert game.reset({"number": 6}) is None
    assert [game.step(say(turn)) for turn in turns] == replies


def test_the_calculator_judges_the_turn_that_calls_it_not():
    game = Calculator()
    game.reset({"result": 42})
    assert game.multiply(6, 7) == 42
    assert game.step(say(" 42")) == ("", 1.0, True)
    assert game.step(say("41")) == ("", 0.0, True)
