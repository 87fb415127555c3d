"""The shipped data of examples/arithmetic: what its script makes, half right, none held out; and its reward."""

import json
from pathlib import Path

from examples.arithmetic import make_data, sums

EXAMPLE = Path(make_data.__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text().splitlines()]


def is_right(row: dict[str, str]) -> bool:
    digits = row["prompt"].split()[1:-1]
    return sum(map(int, digits)) == int(row["answer"].replace(" ", ""))


def test_the_script_makes_the_shipped_files(tmp_path):
    make_data.write(tmp_path, make_data.data_sets())
    for name in ("sft", "prompts", "heldout"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (EXAMPLE / f"{name}.jsonl").read_bytes()


def test_half_of_the_sums_to_imitate_are_right_and_all_others_and_none_is_in_two_files():
    assert sum(map(is_right, rows("sft"))) == len(rows("sft")) / 2
    assert all(map(is_right, rows("prompts") + rows("heldout")))
    prompts = [row["prompt"] for name in ("sft", "prompts", "heldout") for row in rows(name)]
    assert len(set(prompts)) == len(prompts)


def test_the_reward_is_for_the_sum_alone():
    row = {"prompt": "add 9 8 6 0 :", "answer": " 2 3"}
    assert sums.right([""] * 4, [" 2 3", " 2 4", " 2 3 0", ""], [row] * 4) == [1.0, 0.0, 0.0, 0.0]
