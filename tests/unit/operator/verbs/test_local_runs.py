"""`rlhf status`, `list` and `logs` of runs of this machine."""

import json
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.contract.run import RunConfig
from rlhf_api.contract.status import JobStatus
from rlhf_operator import cli
from rlhf_operator.local.records import workdir
from rlhf_operator.status.job_status import first_status
from rlhf_operator.verbs import local_runs

BEGAN = "2026-11-28T10:00:00Z"


def write_status(name: str, **changes: object) -> None:
    folder = Path("runs", name)
    before = workdir.read(folder / workdir.STATUS, JobStatus) or first_status(job().spec, None)
    workdir.write(folder / workdir.STATUS, before.model_copy(update={"start_time": BEGAN, **changes}))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs: one that goes on, and an earlier one that has ended."""
    monkeypatch.chdir(tmp_path)
    for name in ("ppo", "sft"):
        (tmp_path / "runs" / name / "logs").mkdir(parents=True)
        config = RunConfig(job=f"{name}-job", spec=job().spec, workdir=str(tmp_path / "runs" / name))
        workdir.write_config(tmp_path / "runs" / name, config)
    (tmp_path / "runs" / "notes").mkdir()
    write_status("ppo", phase="Running", step=3, reward=0.5, activity="training")
    ended = {"phase": "Succeeded", "completion_time": BEGAN, "start_time": "2026-11-27T10:00:00Z"}
    write_status("sft", step=4, **ended)
    return tmp_path / "runs"


def test_a_run_has_the_page_of_a_job(runs, capsys):
    with workdir.locked(runs / "ppo"):
        assert cli.main(["status", "runs/ppo"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("ppo-job  Running  training  (in runs/ppo, began ")
    assert "step 3/4" in page
    assert "reward 0.5" in page
    assert cli.main(["status", "runs/ppo", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["phase"] == "Running"


def test_a_run_whose_process_has_died_is_told_from_one_that_goes_on(runs, capsys):
    assert cli.main(["status", "runs/ppo"]) == 0
    assert "its `rlhf run` has died; go on with --resume" in capsys.readouterr().out
    with workdir.locked(runs / "ppo"):
        assert cli.main(["status", "runs/ppo"]) == 0
    assert "died" not in capsys.readouterr().out


def test_the_runs_of_a_folder_are_listed_the_newest_first(runs, capsys):
    with workdir.locked(runs / "ppo"):
        assert cli.main(["list", "runs"]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["NAME", "PHASE", "STEP", "STEPS", "REWARD", "KL", "RESTARTS", "BEGAN"]
    assert [row[:4] for row in rows] == [["ppo", "Running", "3", "4"], ["sft", "Succeeded", "4", "4"]]
    assert cli.main(["list", "runs"]) == 0
    assert "Running (died)" in capsys.readouterr().out


def test_a_watch_ends_with_the_run(runs, monkeypatch, capsys):
    monkeypatch.setattr(local_runs.time, "sleep", lambda _: write_status("ppo", phase="Succeeded", step=4))
    with workdir.locked(runs / "ppo"):
        assert cli.main(["status", "runs/ppo", "--watch"]) == 0
    lines = [line.partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("Running  step 3/4")
    assert lines[-1].startswith("Succeeded  step 4/4")


def test_logs_of_one_process_and_of_all(runs, capsys):
    (runs / "ppo" / "logs" / "trainer-0.log").write_text("one\ntwo \x1b[31mred\n")
    (runs / "ppo" / "logs" / "generator-0.log").write_text("three\n")
    (runs / "ppo" / "logs" / "trainer-0.log.1").write_text("older\n")
    assert cli.main(["logs", "runs/ppo"]) == 0
    assert capsys.readouterr().out == "one\ntwo ␛[31mred\n"
    assert cli.main(["logs", "runs/ppo", "--role=all", "--tail=1"]) == 0
    assert capsys.readouterr().out == "generator-0 | three\ntrainer-0 | two ␛[31mred\n"
    assert cli.main(["logs", "runs/ppo", "--role=reward"]) == 2
    assert "runs/ppo/logs: has no log of this role; it has generator-0, trainer-0" in capsys.readouterr().err


def test_a_log_is_followed_until_the_run_has_ended(runs, monkeypatch, capsys):
    log = runs / "ppo" / "logs" / "trainer-0.log"
    log.write_text("one\n")
    pieces = iter(["two\nthr", "ee\n"])

    def write_more(_: float) -> None:
        if piece := next(pieces, None):
            with log.open("a") as out:
                out.write(piece)
        else:
            write_status("ppo", phase="Succeeded")

    monkeypatch.setattr(local_runs.time, "sleep", write_more)
    with workdir.locked(runs / "ppo"):
        assert cli.main(["logs", "runs/ppo", "--follow"]) == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "nowhere"], "nowhere: holds no run of this machine"),
        (["list", "runs", "-A"], "RUNS lists runs of this machine: leave out --all-namespaces and --output"),
        (["logs", "runs/ppo", "-p"], "--previous is for pods: a log of this machine has all starts"),
    ],
)
def test_what_cannot_be_shown_is_one_error(runs, capsys, arguments, message):  # noqa: ARG001
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_status_of_another_version_is_one_error(runs, capsys):
    (runs / "ppo" / "status.json").write_text("{}")
    assert cli.main(["status", "runs/ppo"]) == 2
    assert "is not the status of a run that this version can read" in capsys.readouterr().err
