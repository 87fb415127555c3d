"""The shipped data of examples/environments: what its script makes; and its games."""

import asyncio
import json
from pathlib import Path

import pytest
from examples.environments import make_data
from examples.environments.calculator import Calculator
from examples.environments.code import Code
from examples.environments.guess import Guess
from examples.environments.ranges import Ranges

from rlhf_trainer.process import private_processes

EXAMPLE = Path(make_data.__file__).parent
NONE = asyncio.run(private_processes.why_impossible())


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


@pytest.mark.parametrize(
    ("turns", "replies"),
    [
        (
            ["5", "8", "6"],
            [("A number from 6 to 9:", 0.0, False), ("A number from 6 to 7:", 0.0, False), ("", 1.0, True)],
        ),
        (["5", "4"], [("A number from 6 to 9:", 0.0, False), ("", 0.0, True)]),
        (["It is 6"], [("", 0.0, True)]),
    ],
)
def test_a_number_beside_the_range_that_is_asked_for_is_lost(turns, replies):
    game = Ranges(highest=9)
    assert game.reset({"number": 6}) is None
    assert [game.step(say(turn)) for turn in turns] == replies


def test_the_calculator_judges_the_turn_that_calls_it_not():
    game = Calculator()
    game.reset({"result": 42})
    assert game.multiply(6, 7) == 42
    assert game.step(say(" 42")) == ("", 1.0, True)
    assert game.step(say("41")) == ("", 0.0, True)


def judged(*programs: str) -> list[tuple[str, float, bool]]:
    async def play() -> list[tuple[str, float, bool]]:
        game = Code()
        game.reset({"tests": [[3, 6], [5, 10]]})
        return await asyncio.gather(*(game.step(say(program)) for program in programs))

    return asyncio.run(play())


@pytest.mark.skipif(bool(NONE), reason=NONE)
def test_a_program_is_judged_by_its_tests():
    failed = " 3 gives 6 :", 0.0, False
    assert judged(" x * 2", "x + 3", "x +") == [("", 1.0, True), (" 5 gives 10 :", 0.0, False), failed]


DISHONEST = {
    "exits": "__import__('os')._exit(0)",
    "prints a verdict": "print('true') or __import__('os')._exit(0)",
    "writes a verdict": "open('/tmp/reward.txt', 'w').write('1')",
    "writes on every descriptor": "[__import__('os').write(fd, b'[1, 1]') for fd in (1, 2)]",
    "looks for the tests": "__import__('json').loads(open('/proc/1/environ').read())",
    "is equal to all": "type('Equal', (int,), {'__eq__': lambda *_: True})()",
    "forks": "[__import__('os').fork() for _ in range(9999)]",
    "takes memory": "bytearray(1 << 30)",
    "takes memory files": "__import__('os').memfd_create('m')",
    "fills the disk": "[open(f'/tmp/{n}', 'wb').write(bytes(9 << 20)) for n in range(99)]",
    "never ends": "[0 for _ in iter(int, 1)]",
    "floods": "[print('[' * 9999) for _ in range(999)]",
    "replies deeply": "print('[' * 60000) or __import__('os')._exit(0)",
    "ends its parent": "__import__('os').kill(-1, 9)",
}


@pytest.mark.skipif(bool(NONE), reason=NONE)
def test_no_dishonest_program_passes():
    assert dict(zip(DISHONEST, judged(*DISHONEST.values()), strict=True)) == dict.fromkeys(
        DISHONEST, (" 3 gives 6 :", 0.0, False)
    )
