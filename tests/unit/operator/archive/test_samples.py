"""`rlhf samples` on a work directory and on a store."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_folders import write_run
from tests.support.stores import fill_store
from tests.unit.operator.page.test_samples import ask

from rlhf_api.sections.samples import SAMPLES
from rlhf_operator import cli


def line(step: int, prompt: str, score: float | None, response: str = "yes", **figures: Any) -> str:
    figures |= {"score": score, "advantage": 0.5, "finished": step != 2, "weight_version": step - 1}
    lengths = {"prompt_length": 2, "response_length": 3, "of_a_later_release": 1}
    return json.dumps(
        {"step": step, "prompt_id": "0/1", "prompt": prompt, "response": response, **figures, **lengths}
    )


LINES = [
    line(1, "2+2", 0.0),
    line(2, "3+3", 1.0, rewards={"format": 1.0, "judge": None}),
    line(2, "2+2", None),
    line(3, "2+2", 0.5, "\x1b]0;x\x07four\nok"),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / SAMPLES).write_text("\n".join([*LINES, '{"step": 4, "cut']) + "\n")
    return tmp_path


def heads(out: str) -> list[list[str]]:
    return [text.split()[:6] for text in out.splitlines() if text.startswith("step ")]


def test_the_newest_come_first_with_their_figures_and_clean_text(run, capsys):
    assert cli.main(["samples", str(run)]) == 0
    out = capsys.readouterr().out
    assert [head[1] for head in heads(out)] == ["3", "2", "2", "1"]
    assert out.startswith("step 3  prompt 0/1  score 0.5  advantage 0.5  3 tokens  weights 2\n  2+2\n  > ")
    assert "\x1b" not in out
    assert "score -" in out, "of a response that has none"
    assert "weights 1\n  format 1  judge -\n  3+3\n" in out
    assert "cut off at the limit" in out


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        (["--step", "2"], ["2", "2"]),
        (["--step", "2.."], ["3", "2", "2"]),
        (["--step", "..1"], ["1"]),
        (["--step", "1..2"], ["2", "2", "1"]),
        (["--prompt", "2+2"], ["1", "2", "3"]),
        (["--best"], ["2", "3", "1"]),
        (["--worst", "--limit", "1"], ["1"]),
    ],
)
def test_steps_prompts_and_scores_are_chosen(run, capsys, arguments, steps):
    assert cli.main(["samples", str(run), *arguments]) == 0
    assert [head[1] for head in heads(capsys.readouterr().out)] == steps


def test_json_is_for_programs(run, capsys):
    assert cli.main(["samples", str(run), "--json", "--step", "1"]) == 0
    (sample,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (sample["step"], sample["prompt"], sample["score"]) == (1, "2+2", 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "a"], "--step must be a step or a range of steps"),
        (["--step", ".."], "--step must be a step or a range of steps"),
        (["--limit", "0"], "--limit must be at least 1; got 0"),
        (["--step", "9"], "holds no such sample"),
    ],
)
def test_a_wrong_choice_is_one_error(run, capsys, arguments, message):
    assert cli.main(["samples", str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_store_has_them_too(tmp_path, capsys):
    url = fill_store(tmp_path / "store", {SAMPLES: "\n".join(LINES).encode()})
    assert cli.main(["samples", url, "--limit", "9"]) == 0
    assert len(heads(capsys.readouterr().out)) == 4
    other = fill_store(tmp_path / "other", {})
    assert cli.main(["samples", other]) == 2
    assert "the checkpoint of step 3: holds no samples" in capsys.readouterr().err


def test_the_command_and_the_page_read_alike(run, capsys):
    """The same reader: also a line of an earlier step than the one before, as of a hand's edit, is left out."""
    (run / SAMPLES).write_text("\n".join([*LINES, line(1, "2+2", 0.9), "[]", line(4, "4+4", 0.7)]) + "\n")
    for order in ("best", "worst"):
        assert cli.main(["samples", str(run), f"--{order}", "--json"]) == 0
        printed = [json.loads(each)["score"] for each in capsys.readouterr().out.splitlines()]
        assert printed == [each["score"] for each in ask(write_run(run), "samples", order=order)["samples"]]
        assert sorted(printed) == [0.0, 0.5, 0.7, 1.0]


def test_turns_of_an_episode_are_told_apart(tmp_path, capsys):
    turns = [
        {"by": "policy", "text": "is it 3?", "reward": 0.5},
        {"by": "environment", "text": "\nlower\n"},
        {"by": "policy", "text": "2"},
    ]
    (tmp_path / SAMPLES).write_text(line(1, "guess", 1.0, "is it 3?\nlower\n2", turns=turns))
    assert cli.main(["samples", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1:6] == ["  guess", "  > is it 3?", "    reward 0.5", "  < lower", "  > 2"]
