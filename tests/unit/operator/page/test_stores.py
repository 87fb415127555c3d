"""Runs that are read from their stores alone, on a real S3 server."""

import json
import shutil

import pytest
from tests.support.run_folders import write_run
from tests.support.stores import damage_store, fill_store
from tests.unit.operator.page.test_samples import sample

from rlhf_operator import cli
from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder import run_folder
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.stored import store_copy
from rlhf_operator.page.stored.stores import find_stored_runs

MANIFEST = {
    "metadata": {"name": "ppo"},
    "spec": {"algorithm": "grpo", "steps": 40, "env": {"API_KEY": "***"}},
}


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def blobs(steps):
    return {
        "export/job.json": json.dumps({"job": "ppo", "steps": 40, "manifest": MANIFEST}).encode(),
        "metrics.jsonl": lines(
            {"step": n, "seconds": 1.0, "reward_mean": n / 10} for n in range(1, steps + 1)
        ),
        "evaluation.jsonl": lines([{"step": 0, "set": "easy", "mean": 0.75}]),
        "timeline.jsonl": lines(
            [{"step": n, "time": 20.0 * n, "seconds": 1.0, "spans": []} for n in range(1, steps + 1)]
        ),
        "samples.jsonl": lines([sample(steps, response=f"of step {steps}")]),
    }


@pytest.fixture
def bucket(seaweed, tmp_path, monkeypatch):
    """URL of an empty folder of a bucket."""
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    return seaweed.url(tmp_path.name)


@pytest.fixture
def open_catalog(tmp_path):
    return lambda url: Catalog([], find_stored_runs([url], tmp_path / "copies"))


@pytest.fixture
def asked_again(monkeypatch):
    """A store is asked for its newest checkpoint each time."""
    monkeypatch.setattr(store_copy, "_FRESH_SECONDS", 0.0)


def ask(catalog, rest="", **query):
    (run,) = catalog.runs()
    return answer(catalog, f"/runs/{run.id}/{rest}".rstrip("/"), query)


def test_a_run_is_read_from_its_bucket(bucket, open_catalog):
    fill_store(f"{bucket}/ppo", blobs(3))
    catalog = open_catalog(f"{bucket}/ppo")
    (listed,) = answer(catalog, "/runs", {})["runs"]
    expected = {"name": "ppo", "place": f"{bucket}/ppo", "phase": "Stored", "step": 3, "steps": 40}
    assert listed | expected == listed
    assert listed["heldOut"] == 0.75
    values = ask(catalog, "metrics", names="reward_mean")
    assert (values["steps"], values["series"]["reward_mean"]) == ([1, 2, 3], [0.1, 0.2, 0.3])
    assert [each["response"] for each in ask(catalog, "samples")["samples"]] == ["of step 3"]
    assert ask(catalog, "timeline", step="3")["recorded"]
    details = ask(catalog)
    assert [each["step"] for each in details["checkpoints"]] == [3]
    assert details["checkpoints"][0]["clone"] == "rlhf clone MANIFEST --from-step 3"
    assert details["commands"]["samples"] == f"rlhf samples {bucket}/ppo"
    assert "resume" not in details["commands"]
    assert "algorithm: grpo" in details["manifest"]


@pytest.mark.usefixtures("asked_again")
def test_a_run_that_goes_on_shows_its_next_checkpoint(bucket, open_catalog):
    fill_store(f"{bucket}/ppo", blobs(3))
    catalog = open_catalog(f"{bucket}/ppo")
    before = ask(catalog, "metrics", names="reward_mean")
    fill_store(f"{bucket}/ppo", blobs(5), step=5)
    after = ask(catalog, "metrics", names="reward_mean", after="3")
    assert (after["steps"], after["generation"]) == ([4, 5], before["generation"])
    assert [each["response"] for each in ask(catalog, "samples")["samples"]] == ["of step 5"]


def test_the_runs_one_level_below_a_url_are_all_listed(bucket, open_catalog):
    for name in ("a", "b"):
        fill_store(f"{bucket}/{name}", blobs(2))
    places = [run["place"] for run in answer(open_catalog(bucket), "/runs", {})["runs"]]
    assert sorted(places) == [f"{bucket}/a", f"{bucket}/b"]


def test_files_are_copied_when_they_are_asked_for_and_deleted_when_others_need_room(
    bucket, open_catalog, tmp_path
):
    fill_store(f"{bucket}/ppo", blobs(3))
    catalog = open_catalog(f"{bucket}/ppo")
    copied = lambda: {file.name for file in (tmp_path / "copies").rglob("*.json*")}  # noqa: E731
    answer(catalog, "/runs", {})
    assert copied() == {"job.json", "evaluation.jsonl"}
    ask(catalog, "samples")
    assert copied() == {"job.json", "evaluation.jsonl", "metrics.jsonl", "samples.jsonl"}
    (run,) = catalog.runs()
    run.forget()
    assert (copied(), run.memory_bytes) == (set(), 0)
    assert ask(catalog, "samples")["count"] == 1


def test_a_file_that_is_too_large_is_left_out_and_said(bucket, open_catalog, monkeypatch):
    monkeypatch.setattr(store_copy, "MOST_BYTES", 1 << 20)
    fill_store(f"{bucket}/ppo", {**blobs(3), "samples.jsonl": b"x" * (2 << 20)})
    catalog = open_catalog(f"{bucket}/ppo")
    assert ask(catalog, "samples")["samples"] == []
    assert "samples.jsonl has 2 MiB, and 1 can be shown" in answer(catalog, "/runs", {})["runs"][0]["reason"]


def test_a_store_that_fails_later_is_said_and_the_rest_goes_on(bucket, open_catalog, monkeypatch):
    for name in ("a", "b"):
        fill_store(f"{bucket}/{name}", blobs(2))
    catalog = open_catalog(bucket)
    broken = catalog.runs()[0]
    monkeypatch.setattr(broken._copy, "_open", lambda: (_ for _ in ()).throw(RuntimeError("it fails")))
    phases = {run["place"]: (run["phase"], run["reason"]) for run in answer(catalog, "/runs", {})["runs"]}
    assert phases.pop(broken.place) == ("Unknown", "it fails")
    assert [phase for phase, _ in phases.values()] == ["Stored"]


@pytest.mark.parametrize(("pause", "steps"), [(60.0, []), (0.0, [4])])
def test_a_run_says_why_its_store_cannot_be_read_and_asks_it_again_later(tmp_path, monkeypatch, pause, steps):
    monkeypatch.setattr(run_folder, "FAILED_SECONDS", pause)
    store = write_run(tmp_path / "run") / "checkpoints"
    fill_store(store, {})
    damage_store(store)
    catalog = Catalog([tmp_path])
    before = ask(catalog)
    assert (before["checkpoints"], "is damaged" in before["storeProblem"]) == ([], True)
    shutil.rmtree(store)
    fill_store(store, {}, step=4)
    after = ask(catalog)
    assert [each["step"] for each in after["checkpoints"]] == steps
    assert after["storeProblem"] == ("" if steps else before["storeProblem"])


@pytest.mark.parametrize(
    ("place", "changes", "message"),
    [
        ("s3://nowhere/run", {}, "bucket does not exist"),
        ("s3://checkpoints/run", {"AWS_SECRET_ACCESS_KEY": "wrong"}, "403 Forbidden"),
        ("s3://checkpoints/empty-of-all", {}, "holds no checkpoint"),
        ("file:///not/there", {}, "no such directory"),
        ("nfs://host/run", {}, "nfs"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_a_store_that_cannot_be_read_is_one_error(capsys, monkeypatch, place, changes, message):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["ui", place]) == 2
    error = capsys.readouterr().err
    assert (message in error, error.count("\n")) == (True, 1)


def test_a_store_without_keys_is_one_error(capsys, bucket, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/not/there")
    assert cli.main(["ui", f"{bucket}/ppo"]) == 2
    error = capsys.readouterr().err
    assert ("AWS_SHARED_CREDENTIALS_FILE /not/there cannot be read" in error, error.count("\n")) == (True, 1)
