"""Figures by step, from files that are being written, were rewritten, or are somebody's attack."""

import json
import os
from math import isnan

import pytest
from tests.support.run_folders import append_lines

from rlhf_operator.page.folder import series as module
from rlhf_operator.page.folder.series import Series


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def series(tmp_path):
    return Series(tmp_path, "metrics.jsonl")


def read(series, name="reward"):
    series.refresh()
    return dict(zip(series.steps, series.values(name), strict=True))


def test_only_what_was_appended_is_read_again(file, series, monkeypatch):
    append_lines(file, [{"step": step, "reward": step / 2} for step in (1, 2)])
    assert read(series) == {1: 0.5, 2: 1.0}
    parsed = []
    monkeypatch.setattr(module, "from_json", lambda line: parsed.append(line) or json.loads(line))
    append_lines(file, [{"step": 3, "reward": 1.5}])
    assert read(series) == {1: 0.5, 2: 1.0, 3: 1.5}
    assert len(parsed) == 1


def test_a_line_under_way_is_read_once_it_is_whole(file, series):
    file.write_text('{"step": 1, "reward": 1}\n{"step": 2, "rew')
    assert read(series) == {1: 1.0}
    with file.open("a") as out:
        out.write('ard": 2}\n')
    assert read(series) == {1: 1.0, 2: 2.0}


@pytest.mark.parametrize("same_size", [True, False])
def test_a_file_that_a_resumed_run_rewrote_is_read_anew(file, series, same_size):
    append_lines(file, [{"step": step, "reward": 1} for step in (1, 2, 3)])
    assert len(read(series)) == 3
    new = file.with_name(".new")
    append_lines(new, [{"step": step, "reward": 7} for step in (1, 2, 3)[: 3 if same_size else 2]])
    new.replace(file)
    assert set(read(series).values()) == {7.0}
    assert series.generation == 1


def test_a_figure_that_comes_late_or_is_not_finite_leaves_holes(file, series):
    file.write_text('{"step": 1}\n{"step": 2, "reward": null}\n{"step": 3, "reward": 3}\n{"step": 4}\n')
    values = list(read(series).values())
    assert [isnan(value) for value in values] == [True, True, False, True]
    assert series.last("reward") == 3.0


def test_lines_that_no_run_writes_are_left_out(file, series):
    strange = [
        b"\xff\xfe not text",
        b"[1, 2]",
        b'{"reward": 1}',
        b'{"step": true, "reward": 1}',
        b'{"step": -1, "reward": 1}',
        b'{"step": 1e999}',
        b"[" * 5000,
        b'{"step": 4, "reward": "high", "kl": [1], "x": 1e999, "y": 1' + b"0" * 400 + b"}",
        b'{"step": 5, "pad": "' + b"x" * (2 << 20) + b'", "reward": 1}',
        b'{"step": 6, "reward": 6}',
        b'{"step": 2, "reward": 2}',
    ]
    file.write_bytes(b"\n".join([*strange, b""]))
    assert {step: value for step, value in read(series).items() if not isnan(value)} == {6: 6.0}


def test_a_long_run_keeps_every_second_step(file, series, monkeypatch):
    monkeypatch.setattr(module, "MOST_VALUES", 20)
    append_lines(file, [{"step": step, "reward": step} for step in range(1, 101)])
    steps = read(series)
    assert len(steps) <= 20
    assert all(step == value for step, value in steps.items())


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_is_no_file_of_the_run_has_no_figures(file, series, tmp_path, kind):
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        outside = tmp_path.parent / f"{tmp_path.name}-outside.jsonl"
        append_lines(outside, [{"step": 1, "reward": 1}])
        file.symlink_to(outside)
    assert read(series) == {}
