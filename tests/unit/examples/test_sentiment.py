"""The shipped data of examples/sentiment: what its script makes, balanced, and judged as it was meant."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from tests.support.sources.scripts import load_script

EXAMPLE = Path(__file__).parents[3] / "examples" / "sentiment"
FILES = ["sft.jsonl", "pairs.jsonl", "prompts.jsonl", "heldout.jsonl"]


def module(name: str) -> ModuleType:
    return load_script(EXAMPLE / f"{name}.py")


judge = module("judge")


def rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (EXAMPLE / name).read_text().splitlines()]


def verdict(response: str) -> float:
    return judge.positive([""], [response], [{}])[0]


def test_the_script_makes_the_shipped_files(tmp_path):
    module("make_data").main(tmp_path)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (EXAMPLE / name).read_bytes(), (
            f"{name}: run make_data.py again, or undo the edit of the file"
        )


def test_the_files_are_small():
    assert sum((EXAMPLE / name).stat().st_size for name in FILES) < 1_000_000


def test_every_sft_prompt_has_one_positive_and_one_negative_answer():
    verdicts: dict[str, list[float]] = {}
    for row in rows("sft.jsonl"):
        assert row.keys() == {"prompt", "answer"}
        verdicts.setdefault(row["prompt"], []).append(verdict(row["answer"]))
    assert all(sorted(v) == [0.0, 1.0] for v in verdicts.values())


def test_every_pair_is_told_apart_by_the_judge():
    for row in rows("pairs.jsonl"):
        assert len(row["pos_answers"]) == len(row["neg_answers"]) in (1, 2)
        assert [verdict(a) for a in row["pos_answers"]] == [1.0] * len(row["pos_answers"])
        assert [judge.balance(a) < 0 for a in row["neg_answers"]] == [True] * len(row["neg_answers"])


def test_heldout_prompts_are_in_no_other_file():
    heldout = {row["prompt"] for row in rows("heldout.jsonl")}
    known_prompts = {row["prompt"] for name in FILES[:3] for row in rows(name)}
    assert len(heldout) == 100
    assert not heldout & known_prompts


@pytest.mark.parametrize(
    ("response", "balance"),
    [
        ("The acting was superb.", 1),
        ("The plot was thin but the acting was superb and I loved it", 1),
        ("The plot was thin but the acting was superb.", 0),
        ("It was not good.", -1),
        ("It wasn't at all good, it was dull.", -2),
        ("It was not good and I loved it not", 0),
        ("Never dull, always funny!", 2),
        ("It was not long but the ending was lovely.", 1),
        ("Superb superb", 2),
        ("We sat in the second row.", 0),
        ("", 0),
    ],
)
def test_the_judge_weighs_words_and_negations(response, balance):
    assert judge.balance(response) == balance
    assert verdict(response) == float(balance > 0)


def test_brevity_falls_from_one_to_nothing():
    responses = ["word " * n for n in (0, 8, 16, 24, 40)]
    assert judge.brevity([""] * 5, responses, [{}] * 5) == [1.0, 1.0, 0.5, 0.0, 0.0]
