"""The shipped data of examples/arithmetic: half right; and its reward."""

from functools import partial

from examples.arithmetic import sums
from tests.unit.examples.shipped import read_rows

rows = partial(read_rows, "arithmetic")


def is_right(row: dict[str, str]) -> bool:
    digits = row["prompt"].split()[1:-1]
    return sum(map(int, digits)) == int(row["answer"].replace(" ", ""))


def test_half_of_the_sums_to_imitate_are_right_and_all_others():
    assert sum(map(is_right, rows("sft"))) == len(rows("sft")) / 2
    assert all(map(is_right, rows("prompts") + rows("heldout")))


def test_the_reward_is_for_the_sum_alone():
    row = {"prompt": "add 9 8 6 0 :", "answer": " 2 3"}
    assert sums.right([""] * 4, [" 2 3", " 2 4", " 2 3 0", ""], [row] * 4) == [1.0, 0.0, 0.0, 0.0]
