"""A run records the code that it was started with, and a resumed one says what has changed of it."""

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.unit.api.manifests import job

from rlhf_api.contract.run import RunConfig
from rlhf_api.errors.problem import InvalidJob
from rlhf_operator.local.records import provenance, workdir

REWARD = "spec.reward.functions=[{function: 'scoring_here:score'}]"
SCORE = "def score(prompts, responses, rows):\n    return [0.0 for _ in responses]\n"
FOLDER = Path("w")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a reward's module."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scoring_here.py").write_text(SCORE)
    (tmp_path / "w").mkdir()
    return tmp_path


def starts() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / provenance.FILE).read_text().splitlines()]


def git(*arguments: str) -> str:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    return subprocess.run(
        ["git", *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_each_start_has_commit_changes_versions_and_code(here):
    git("init", "-q")
    git("add", "scoring_here.py")
    git("commit", "-q", "-m", "first")
    provenance.record_start(FOLDER, job(REWARD).spec)
    token = "hf_abcdefghijklmnopqrstuvwxyz012345"
    (here / "scoring_here.py").write_text(f'{SCORE}TOKEN = "{token}"\n')
    provenance.record_start(FOLDER, job(REWARD).spec)
    first, second = starts()
    assert first["commit"] == second["commit"] == git("rev-parse", "HEAD")
    assert first["diff"] == ""
    assert "+TOKEN" in second["diff"]
    assert token not in second["diff"]
    assert {"rlhf-operator", "torch", "transformers"} <= first["versions"].keys()
    (field,) = first["code"]
    assert field == "spec.reward.functions[0].function"
    assert first["code"][field].startswith("scoring_here.py sha256 ")
    assert first["code"] != second["code"]


def test_without_git_the_rest_is_recorded(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    provenance.record_start(FOLDER, job(REWARD).spec)
    (start,) = starts()
    assert (start["commit"], start["diff"]) == (None, "")
    assert start["code"]


def test_a_long_diff_is_cut(here, monkeypatch):
    monkeypatch.setattr(provenance, "DIFF_BYTES", 100)
    git("init", "-q")
    git("add", "scoring_here.py")
    git("commit", "-q", "-m", "first")
    (here / "scoring_here.py").write_text("x = 1\n" * 1_000)
    provenance.record_start(FOLDER, job(REWARD).spec)
    assert len(starts()[0]["diff"]) == 100


def test_a_resumed_run_whose_rewards_code_has_changed_asks_first(here):
    config = RunConfig(job="job", spec=job(REWARD).spec, workdir=str(here / "w"))
    workdir.write_config(FOLDER, config)
    provenance.record_start(FOLDER, config.spec)
    unchanged = workdir.prepare(FOLDER, config, resume=True, overwrite=False)
    assert unchanged is not None
    assert unchanged.changes == []
    (here / "scoring_here.py").write_text(SCORE.replace("0.0", "1.0"))
    with pytest.raises(InvalidJob, match=r"spec.reward.functions\[0\].function.*scoring_here.py sha256"):
        workdir.prepare(FOLDER, config, resume=True, overwrite=False)
    accepted = workdir.prepare(FOLDER, config, resume=True, overwrite=False, accept_changes=True)
    assert accepted is not None
    assert [change.field for change in accepted.changes] == ["spec.reward.functions[0].function"]


def test_a_resumed_run_says_which_packages_have_another_version(here, monkeypatch):
    config = RunConfig(job="job", spec=job(REWARD).spec, workdir=str(here / "w"))
    workdir.write_config(FOLDER, config)
    provenance.record_start(FOLDER, config.spec)
    monkeypatch.setattr(provenance, "version", lambda name: "9.9" if name == "torch" else version(name))
    resumed = workdir.prepare(FOLDER, config, resume=True, overwrite=False)
    assert resumed is not None
    (change,) = resumed.changes
    assert str(change) == f"package torch: '{version('torch')}' -> '9.9'"


@pytest.mark.usefixtures("here")
def test_files_of_the_manifest_that_have_changed_ask_first_and_are_not_quoted():
    def config(rows: str) -> RunConfig:
        files = {"rows.jsonl": rows, "token.txt": "hunter-1"}
        return RunConfig(job="job", spec=job(f"spec.workspace.files={json.dumps(files)}").spec, workdir="w")

    workdir.write_config(FOLDER, config("first"))
    assert "hunter-1" not in (FOLDER / workdir.CONFIG).read_text()
    unchanged = workdir.prepare(FOLDER, config("first"), resume=True, overwrite=False)
    assert unchanged is not None
    assert unchanged.changes == []
    with pytest.raises(InvalidJob) as refused:
        workdir.prepare(FOLDER, config("second"), resume=True, overwrite=False)
    (problem,) = refused.value.problems
    assert problem.where == "spec.workspace.files.rows.jsonl"
    assert "second" not in problem.message


@pytest.mark.parametrize("content", [None, "", "no json", "[1]", '{"time": 3}'])
def test_a_record_that_cannot_be_read_is_no_change(here, content):
    if content is not None:
        (here / FOLDER / provenance.FILE).write_text(content)
    assert provenance.changed_since(FOLDER, job(REWARD).spec) == []
