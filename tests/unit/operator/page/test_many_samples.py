"""More samples than are read at once: all are reached, and what was searched is said."""

import json
import random
from pathlib import Path

import pytest
from tests.support.run_folders import append_lines, write_run
from tests.unit.operator.page.test_samples import ask, sample

from rlhf_operator.archive import sample_index, sample_order
from rlhf_operator.page.folder import sample_choice
from rlhf_operator.page.folder.catalog import Catalog

STEPS, OF_A_STEP = 60, 6


@pytest.fixture
def lines() -> list[dict]:
    numbers = random.Random(3)
    return [
        sample(
            step,
            f"prompt {place % 2}",
            round(numbers.random(), 2),
            f"answer {step} {place} {'x' * numbers.randrange(90)}",
        )
        for step in range(1, STEPS + 1)
        for place in range(OF_A_STEP)
    ]


@pytest.fixture
def folder(tmp_path, lines, monkeypatch) -> Path:
    """A run whose file is read in parts of about two steps, one with each request."""
    monkeypatch.setattr(sample_index, "PART", 2000)
    monkeypatch.setattr(sample_index, "PATIENCE", 0.0)
    monkeypatch.setattr(sample_order, "_BLOCK", 50)
    write_run(tmp_path)
    append_lines(tmp_path / "samples.jsonl", lines)
    return tmp_path


@pytest.fixture
def catalog(folder) -> Catalog:
    return Catalog([folder])


def read_whole(folder, catalog) -> int:
    """Asks until all is read; returns how often."""
    for count in range(1, 1000):
        if ask(folder, "samples", catalog)["whole"]:
            return count
    raise AssertionError("it is never whole")


def walk(folder, catalog, **query) -> list[tuple[int, str]]:
    """Step and response of all pages."""
    samples, cursor = [], {}
    while cursor is not None:
        reply = ask(folder, "samples", catalog, **query, **cursor)
        samples += [(each["step"], each["response"]) for each in reply["samples"]]
        cursor = {"before": reply["next"]} if reply["next"] else None
    return samples


def expect(lines, key) -> list[tuple[int, str]]:
    return [(each["step"], each["response"]) for each in sorted(lines, key=key)]


ORDERS = {
    "newest": lambda line: -line["step"],
    "oldest": lambda line: line["step"],
    "best": lambda line: -line["score"],
    "worst": lambda line: line["score"],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("more", [{}, {"search": "ANSWER"}])
def test_pages_reach_the_oldest_sample_in_each_order(folder, catalog, lines, order, more):
    assert read_whole(folder, catalog) > 10
    assert walk(folder, catalog, order=order, limit="35", **more) == expect(lines, ORDERS[order])


def test_the_newest_are_there_at_once_and_a_step_only_as_a_whole(folder, catalog):
    for _ in range(8):
        reply = ask(folder, "samples", catalog, limit="500", order="oldest")
        steps = reply["steps"]
        assert steps == list(range(steps[0], STEPS + 1))
        assert [each["id"] for each in reply["samples"]] == [
            f"{step}.{number}" for step in steps for number in range(OF_A_STEP)
        ]
        assert not reply["whole"]


def test_new_samples_join_while_older_ones_are_read(folder, catalog, lines):
    ask(folder, "samples", catalog)
    with (folder / "samples.jsonl").open("a") as file:
        new = [sample(STEPS, "prompt 0", 0.5, "late"), sample(STEPS + 1, "prompt 1", 0.5, "new")]
        text = "".join(json.dumps(each) + "\n" for each in new)
        file.write(text[:-5])
        file.flush()
        newest = ask(folder, "samples", catalog)["samples"]
        assert newest[OF_A_STEP]["response"] == "late"
        file.write(text[-5:])
    assert ask(folder, "samples", catalog)["samples"][0]["id"] == f"{STEPS + 1}.0"
    group = ask(folder, "samples", catalog, group=f"{STEPS}.0")["samples"]
    assert [each["id"] for each in group] == [f"{STEPS}.{place}" for place in (0, 2, 4, 6)]
    read_whole(folder, catalog)
    assert walk(folder, catalog, order="oldest") == expect([*lines, *new], ORDERS["oldest"])


def test_a_line_longer_than_a_part_and_garbage_are_left_out(folder, catalog, lines):
    garbage = ["x" * 9000, json.dumps(sample(2, response="y" * 9000)), "[]", "{}", '{"step": "1"}', "nan"]
    old = (folder / "samples.jsonl").read_text().splitlines()
    (folder / "samples.jsonl").write_text(
        "\n".join([*garbage, *old[:30], *garbage, *old[30:], *garbage, "z" * 9000])
    )
    read_whole(folder, catalog)
    assert walk(folder, catalog, order="oldest") == expect(lines, ORDERS["oldest"])


def test_the_oldest_make_room_and_the_reply_says_it(folder, catalog, monkeypatch):
    monkeypatch.setattr(sample_index, "MOST_SAMPLES", 100)
    for _ in range(80):
        reply = ask(folder, "samples", catalog)
    assert 90 - OF_A_STEP <= reply["total"] <= 100
    assert reply["steps"][-1] == STEPS
    assert not reply["whole"]


def test_a_search_says_over_how_many_samples_it_ran_and_the_next_page_goes_on(
    folder, catalog, lines, monkeypatch
):
    monkeypatch.setattr(sample_choice, "SEARCH_SECONDS", 0.0)
    read_whole(folder, catalog)
    first = ask(folder, "samples", catalog, search="answer 3 1 ")
    assert (first["samples"], first["searched"], first["count"]) == ([], 64, len(lines))
    assert (
        walk(folder, catalog, search="answer 3 1 ")
        == [(3, each["response"]) for each in lines if each["step"] == 3][1:2]
    )
    scores = ask(folder, "scores", catalog, search="answer")
    assert (scores["samples"], scores["whole"]) == (64, False)
