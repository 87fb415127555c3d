"""`rlhf compare` on work directories."""

import csv
import json
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.contract.run import RunConfig
from rlhf_operator import cli
from rlhf_operator.local.records import provenance, workdir
from rlhf_operator.status.job_status import first_status


def made(folder: Path, *overrides: str, rewards: list[float | None], evaluations: list[float] = []) -> str:  # noqa: B006
    """A run's work directory, with a step for each reward, of 2 s and 100 tokens."""
    folder.mkdir(exist_ok=True)
    config = RunConfig(job=folder.name, spec=job(*overrides).spec, workdir=str(folder))
    workdir.write_config(folder, config)
    workdir.write(folder / workdir.STATUS, first_status(config.spec, None))
    steps = [
        {"step": step, "reward_mean": reward, "kl_mean": 0.1, "seconds": 2.0, "tokens": 100}
        for step, reward in enumerate(rewards, 1)
    ]
    judged = [{"step": step, "set": "greedy", "mean": mean} for step, mean in enumerate(evaluations)]
    judged += [{**line, "set": "named", "a_mean": line["mean"], "b_mean": 2.0} for line in judged]
    for name, lines in ((workdir.METRICS, steps), (workdir.EVALUATIONS, judged)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def write_start(folder: Path, commit: str) -> None:
    folder.mkdir()
    (folder / provenance.FILE).write_text(provenance.Start(time="", commit=commit).model_dump_json() + "\n")


def table(out: str) -> dict[str, list[str]]:
    """Cells by the title of their row; columns are three spaces apart, or more."""
    rows = [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in out.splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_changed_fields_and_figures_stand_side_by_side(tmp_path, capsys):
    for name, commit in (("low", "0a"), ("high", "0b"), ("same", "0a")):
        write_start(tmp_path / name, commit)
    low = made(tmp_path / "low", rewards=[0.0, 0.5], evaluations=[0.1, 0.4, 0.3])
    high = made(
        tmp_path / "high", "spec.optimizer.learningRate=1e-3", rewards=[0.0, 0.25, None], evaluations=[0.1]
    )
    same = made(tmp_path / "same", rewards=[1.0])
    assert cli.main(["compare", low, high, same]) == 0
    shown = table(capsys.readouterr().out)
    rate = job().spec.optimizer.learning_rate
    assert shown["spec.optimizer.learningRate"] == [str(rate), "0.001", str(rate)]
    assert [title for title in shown if title.startswith("spec.")] == ["spec.optimizer.learningRate"]
    assert shown["commit"] == ["'0a'", "'0b'", "'0a'"]
    assert shown["steps"] == ["2", "3", "1"]
    assert shown["reward, last"] == ["0.5", "0.25", "1"]
    assert shown["reward, best of 10 steps"] == ["0.25 (to step 2)", "0.125 (to step 2)", "1 (to step 1)"]
    assert shown["evaluation greedy"] == ["0.1 -> 0.3, best 0.4", "0.1 -> 0.1, best 0.1", "-"]
    assert shown["evaluation named b"] == ["2 -> 2, best 2", "2 -> 2, best 2", "-"]
    assert shown["evaluation named a"] == shown["evaluation greedy"]
    assert "evaluation named" not in shown
    assert shown["tokens/s, median"] == ["50"] * 3
    assert "loss, last" not in shown, "no run has one"


def test_the_figures_of_every_step_are_written_for_other_programs(tmp_path, capsys):
    one, two = made(tmp_path / "one", rewards=[0.0, 0.5]), made(tmp_path / "two", rewards=[1.0])
    file = tmp_path / "curves.csv"
    picture = tmp_path / "curves.png"
    assert cli.main(["compare", one, two, "--csv", str(file), "--picture", str(picture)]) == 0
    assert capsys.readouterr().out.endswith(f"figures of every step are in {file}\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(file.open()))
    assert [(row["run"], row["step"], row["reward_mean"]) for row in rows] == [
        (one, "1", "0.0"),
        (one, "2", "0.5"),
        (two, "1", "1.0"),
    ]


def test_many_runs_have_a_line_each(tmp_path, capsys):
    runs = [
        made(tmp_path / str(i), f"spec.steps={i}", f"spec.checkpoint.store=file:///nowhere/{i}", rewards=[i])
        for i in range(1, 6)
    ]
    assert cli.main(["compare", *runs]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["spec.steps", "phase", "steps", "reward,", "last", *head.split()[5:]]
    assert [line.split()[:2] for line in lines] == [[run, str(i)] for i, run in enumerate(runs, 1)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["one"], "compare needs two work directories or more"),
        (["one", "nowhere"], "nowhere: holds no run: run.json is missing, or of another version"),
        (["one", "one", "--csv", "nowhere/curves.csv"], "cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_compared_is_one_error(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    made(Path("one"), rewards=[0.5])
    assert cli.main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_secrets_are_in_no_cell(tmp_path, capsys):
    runs = [
        made(tmp_path / name, f"spec.env.MY_TOKEN={name}-hunter2", rewards=[0.5]) for name in ("one", "two")
    ]
    assert cli.main(["compare", *runs]) == 0
    assert "hunter2" not in capsys.readouterr().out
