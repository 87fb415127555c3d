"""The shipped data of examples/sorting: half right; and its rewards."""

from functools import partial

import pytest
from examples.sorting import order
from tests.unit.examples.shipped import read_rows

rows = partial(read_rows, "sorting")


def test_half_of_the_answers_are_right():
    sft = rows("sft")
    right = order.exact([row["prompt"] for row in sft], [row["answer"] for row in sft], sft)
    assert sum(right) / len(right) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("response", "places", "exact"),
    [
        (" 1 2 3 4", 1.0, 1.0),
        (" 1 2 4 3", 0.5, 0.0),
        (" 1 2", 0.5, 0.0),
        (" 1 2 3 4 5 6 7 8", 0.5, 0.0),
        (" 4 1 2 3", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_rewards(response, places, exact):
    prompt = "sort 3 1 4 2 :"
    assert order.places([prompt], [response], [{}]) == [places]
    assert order.exact([prompt], [response], [{}]) == [exact]
