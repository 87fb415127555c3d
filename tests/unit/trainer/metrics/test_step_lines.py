"""`samples.jsonl` and the other files of lines by step: what stays of them."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlhf_api.contract.samples import Sample
from rlhf_trainer.metrics.step_lines import StepLines

MOST = 12_000


def sample(step: int, response: str = "", **figures: Any) -> Sample:
    given = {"prompt_id": "0/1", "prompt": "", "weight_version": 0, "prompt_length": 1, "response_length": 1}
    return Sample(step=step, response=response, **{**given, **figures})


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_resumed_run_has_no_step_twice(tmp_path):
    file = tmp_path / "samples.jsonl"
    samples = StepLines(file, MOST, 0)
    for step in (1, 2, 3):
        samples.add(step, [sample(step, f"first {step}")])
    with file.open("a") as out:
        out.write('{"step": 4, "resp')  # the crash
    again = StepLines(file, MOST, 2)
    again.add(3, [sample(3, "second 3")])
    assert [line["response"] for line in lines(file)] == ["first 1", "first 2", "second 3"]


def test_a_long_run_keeps_steps_at_even_distances_within_the_limit(tmp_path):
    file = tmp_path / "samples.jsonl"
    samples = StepLines(file, MOST, 0)
    for step in range(1, 1001):
        samples.add(step, [sample(step, "x" * 100)])
        assert file.stat().st_size <= MOST
    steps = [line["step"] for line in lines(file)]
    distances = {after - before for before, after in pairwise(steps)}
    assert len(distances) == 1
    assert len(steps) > 10
    assert steps[0] <= 64
    assert steps[-1] > 900


def test_one_step_cannot_push_out_all_others(tmp_path):
    file = tmp_path / "samples.jsonl"
    samples = StepLines(file, MOST, 0)
    samples.add(1, [sample(1, "short")])
    samples.add(2, [sample(2, "x" * 1000)] * 100)
    steps = [line["step"] for line in lines(file)]
    assert steps[0] == 1
    assert 1 <= steps.count(2) <= 3


def test_figures_that_are_not_finite_are_null(tmp_path):
    file = tmp_path / "samples.jsonl"
    StepLines(file, MOST, 0).add(1, [sample(1, score=float("nan"))])
    assert lines(file)[0]["score"] is None
