"""Marks, logs, times and differences of runs, from files as hosts and trainers write them."""

import datetime
import os

import pytest
from tests.support.run_folders import write_run
from tests.support.stores import fill_store
from tests.unit.api.manifests import job

from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog
from rlhf_operator.page.refusal import Refusal

TRAINER = """\
=== 2026-01-01 10:00:00 python3 -m rlhf_trainer.torchrun
2026-01-01 10:00:05,000 INFO rlhf_trainer.weights.publisher: generator-0 joined with weight version 0
2026-01-01 10:00:10,000 INFO rlhf_trainer.metrics.recording: step 1/40: reward_mean=0.3
2026-01-01 10:00:20,000 INFO rlhf_trainer.metrics.recording: step 2/40: reward_mean=0.3
2026-01-01 10:00:25,000 WARNING rlhf_trainer.dispatch.assignments: generator-0 failed (HTTP 500); its items go on
2026-01-01 10:00:28,000 INFO rlhf_trainer.weights.publisher: generator-1 joined with weight version 2
2026-01-01 10:00:29,000 WARNING rlhf_trainer.training.monitor: warn: spec.health.rules[0]: kl_mean is 3
2026-01-01 10:00:29,500 INFO elsewhere: step 9/40: a line of another module
not a line of a log \xff joined with weight version 7
=== 2026-01-01 10:02:00 python3 -m rlhf_trainer.torchrun
2026-01-01 10:02:05,000 INFO rlhf_trainer.training.checkpoints: resumed from the checkpoint of step 2 in file:///x
"""
GENERATOR = """\
=== 2026-01-01 10:00:00 python3 -m rlhf_trainer.roles.generator
=== 2026-01-01 10:00:22 python3 -m rlhf_trainer.roles.generator
=== 2026-01-01 10:02:00 python3 -m rlhf_trainer.roles.generator
"""


def utc(local: str) -> str:
    seconds = datetime.datetime.fromisoformat(f"2026-01-01 {local}").timestamp()
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


@pytest.fixture
def folder(tmp_path):
    write_run(tmp_path, steps=[{"step": step, "seconds": 10.0} for step in (1, 2)])
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer-0.log").write_bytes(TRAINER.encode("latin-1"))
    (tmp_path / "logs" / "generator-0.log").write_text(GENERATOR)
    begun = (utc("09:59:59"), utc("10:01:59"))
    (tmp_path / "provenance.jsonl").write_text("".join(f'{{"time": "{time}"}}\n' for time in begun) + "{cut")
    return tmp_path


def ask(folder, rest, **query):
    catalog = Catalog([folder])
    (run,) = catalog.runs()
    return answer(catalog, f"/runs/{run.id}/{rest}", query)


def marks(folder):
    return [(mark["step"], mark["kind"], mark["text"][:34]) for mark in ask(folder, "marks")["marks"]]


def test_faults_restarts_joins_rules_and_resumes_are_marks_at_their_steps(folder):
    assert marks(folder) == [
        (3, "restart", "generator-0 was started again"),
        (3, "fault", "generator-0 failed (HTTP 500); its"),
        (3, "membership", "generator-1 joined with weight ver"),
        (3, "health", "warn: spec.health.rules[0]: kl_mea"),
        (3, "resume", "the run was started again"),
        (3, "resume", "resumed from the checkpoint of ste"),
    ]


def test_times_are_in_utc(folder):
    assert ask(folder, "marks")["marks"][1]["time"] == utc("10:00:25")


def test_a_last_failure_and_a_breach_of_the_status_are_marks(folder):
    failure = {
        "process": "generator-0",
        "time": "2030-01-01T00:00:00Z",
        "reason": "killed by SIGKILL",
        "log": "",
    }
    status = {
        "roles": {"generator": {"desired": 1, "ready": 0, "restarts": 1, "lastFailure": failure}},
        "health": {"step": 2, "since": 2, "reason": "NotFinite", "action": "fail", "message": "loss is NaN"},
    }
    write_run(folder, status=status)
    shown = marks(folder)
    assert (3, "fault", "generator-0 (generator): killed by") in shown
    assert (2, "health", "fail: loss is NaN") in shown


def test_generators_that_take_turns_on_a_gpu_join_without_a_mark(folder):
    config = folder / "run.json"
    config.write_text(config.read_text().replace('{"job"', '{"sharedGpus": true, "job"'))
    assert "membership" not in {kind for _, kind, _ in marks(folder)}


def test_what_moved_to_an_older_log_stays_marked(folder):
    catalog = Catalog([folder])
    (run,) = catalog.runs()
    before = answer(catalog, f"/runs/{run.id}/marks", {})
    log = folder / "logs" / "trainer-0.log"
    log.with_name("trainer-0.log.1").write_bytes(log.read_bytes())
    log.write_bytes(
        b"2026-01-01 10:03:00,000 ERROR rlhf_trainer.dispatch.dispatch: giving up on prompt 0/1: x\n"
    )
    after = answer(catalog, f"/runs/{run.id}/marks", {})
    texts = [mark["text"] for mark in after["marks"]]
    assert texts[-1] == "giving up on prompt 0/1: x"
    assert {mark["text"] for mark in before["marks"]} <= {*texts, "generator-0 was started again"}


def test_a_folder_without_logs_has_no_marks(tmp_path):
    write_run(tmp_path)
    assert marks(tmp_path) == []
    assert ask(tmp_path, "logs") == {"files": []}


def test_logs_are_listed_and_read_by_their_end_and_by_start(folder):
    assert [file["name"] for file in ask(folder, "logs")["files"]] == ["generator-0.log", "trainer-0.log"]
    assert [file["role"] for file in ask(folder, "logs", role="trainer")["files"]] == ["trainer"]
    assert ask(folder, "logs/generator-0.log")["text"] == GENERATOR
    second = ask(folder, "logs/trainer-0.log", attempt="2")
    assert (second["attempts"], len(second["text"].splitlines())) == (2, 2)
    assert ask(folder, "logs/trainer-0.log", tail="150")["text"].startswith("2026-01-01 10:02:05")


@pytest.mark.parametrize("name", ["..", "secret.log", "run.json", "trainer-0.log.9", "linked-0.log"])
def test_what_is_no_log_is_not_read(folder, name):
    (folder / "logs" / "linked-0.log").symlink_to("/etc/hostname")
    os.link(folder / "run.json", folder / "logs" / "secret.log")
    assert "linked-0.log" not in [file["name"] for file in ask(folder, "logs")["files"]]
    with pytest.raises(Refusal) as caught:
        ask(folder, f"logs/{name}")
    assert caught.value.status == 404


def test_the_parts_of_a_step_fill_its_seconds(tmp_path):
    line = {"seconds": 10.0, "generate_seconds": 6.0, "train_seconds": 3.0, "generator_idle_share": 0.4}
    write_run(tmp_path, steps=[{"step": 1, "seconds": 5.0}, {"step": 2, **line}])
    timeline = ask(tmp_path, "timeline", step="2")
    spans = [(span["who"], span["name"], span["start"], span["end"]) for span in timeline["spans"]]
    assert spans == [
        ("trainer", "wait for responses", 0.0, 6.0),
        ("trainer", "train", 6.0, 9.0),
        ("trainer", "other", 9.0, 10.0),
        ("generators", "generate", 0.0, 6.0),
        ("generators", "wait for work", 6.0, 10.0),
    ]
    assert timeline["idle"] == {"trainer": 6.0, "generators": 4.0}
    assert not timeline["recorded"]
    with pytest.raises(Refusal, match="has no times of step 3"):
        ask(tmp_path, "timeline", step="3")


def test_two_runs_differ_in_fields_code_and_versions(tmp_path):
    for name, seed, version in (("a", 1, "2.0"), ("b", 2, "2.1")):
        write_run(tmp_path / name, name=name, spec={"seed": seed, "checkpoint": {"store": name}, "steps": 4})
        start = f'{{"time": "2026-01-01T00:00:00Z", "commit": "c", "versions": {{"torch": "{version}"}}}}\n'
        (tmp_path / name / "provenance.jsonl").write_text(start)
    catalog = Catalog([tmp_path])
    ids = {run.summary()["name"]: run.id for run in catalog.runs()}
    assert answer(catalog, "/compare", {"a": ids["a"], "b": ids["b"]})["differences"] == [
        {"path": "spec.seed", "a": 1, "b": 2},
        {"path": "versions.torch", "a": "2.0", "b": "2.1"},
    ]
    with pytest.raises(Refusal, match="no such run"):
        answer(catalog, "/compare", {"a": ids["a"], "b": "x"})


def test_fields_that_one_run_leaves_at_their_defaults_do_not_differ(tmp_path):
    """A work directory has every field, a store and a cluster those that are set."""
    written = job("spec.seed=3").spec
    specs = {
        "whole": written.model_dump(mode="json", by_alias=True),
        "short": written.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "other": {**written.model_dump(mode="json", by_alias=True, exclude_defaults=True), "seed": 4},
    }
    for name, spec in specs.items():
        write_run(tmp_path / name, name=name, spec=spec)
    catalog = Catalog([tmp_path])
    ids = {run.summary()["name"]: run.id for run in catalog.runs()}
    assert answer(catalog, "/compare", {"a": ids["whole"], "b": ids["short"]})["differences"] == []
    assert answer(catalog, "/compare", {"a": ids["whole"], "b": ids["other"]})["differences"] == [
        {"path": "spec.seed", "a": 3, "b": 4}
    ]


@pytest.mark.parametrize(
    ("paths", "sums", "expected"),
    [
        (("rows.jsonl", "rows.jsonl"), (7, 7), []),
        (
            ("rows.jsonl", "rows.jsonl"),
            (7, 0xABC),
            [("data rows.jsonl", "rows with checksum 00000007", "rows with checksum 00000abc")],
        ),
        (("rows.jsonl", "/copy/rows.jsonl"), (7, 7), []),
        (("rows.jsonl::2", "copy.jsonl::2"), (7, 7), []),
        (
            ("rows.jsonl::2", "copy.jsonl::3"),
            (7, 7),
            [("spec.data.train[0]", "rows.jsonl::2", "copy.jsonl::3")],
        ),
        (("rows.jsonl", "other.jsonl"), (7, 8), [("spec.data.train[0]", "rows.jsonl", "other.jsonl")]),
        (("rows.jsonl", "other.jsonl"), (7, None), [("spec.data.train[0]", "rows.jsonl", "other.jsonl")]),
        (("rows.jsonl", "rows.jsonl"), (None, "seven"), []),
    ],
)
def test_data_differ_in_their_rows_not_in_their_paths(tmp_path, paths, sums, expected):
    for name, path, sum_ in zip("ab", paths, sums, strict=True):
        folder = write_run(tmp_path / name, name=name, spec={"data": {"train": [path]}})
        if sum_ is not None:
            fill_store(folder / "checkpoints", {}, state={"data": {path.partition("::")[0]: sum_}})
    catalog = Catalog([tmp_path])
    ids = {run.summary()["name"]: run.id for run in catalog.runs()}
    differences = answer(catalog, "/compare", {"a": ids["a"], "b": ids["b"]})["differences"]
    assert [tuple(each.values()) for each in differences] == expected
