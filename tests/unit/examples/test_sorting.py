"""The shipped data of examples/sorting: what its script makes, half right, none held out; and its rewards."""

import json
from pathlib import Path

import pytest
from examples.sorting import make_data, order

EXAMPLE = Path(make_data.__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (EXAMPLE / f"{name}.jsonl").read_text().splitlines()]


def test_the_script_makes_the_shipped_files(tmp_path):
    make_data.write(tmp_path, make_data.data_sets())
    for name in ("sft", "prompts", "heldout"):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == (EXAMPLE / f"{name}.jsonl").read_bytes()


def test_half_of_the_answers_are_right_and_no_held_out_prompt_is_trained_on():
    sft = rows("sft")
    right = order.exact([row["prompt"] for row in sft], [row["answer"] for row in sft], sft)
    assert sum(right) / len(right) == pytest.approx(0.5, abs=0.02)
    prompts = [row["prompt"] for name in ("sft", "prompts", "heldout") for row in rows(name)]
    assert len(set(prompts)) == len(prompts)


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
