"""Clones of runs: the checkpoint that each begins from, the best snapshot, and the settings that a run takes."""

import json

import pytest
from tests.support.run_folders import write_run
from tests.support.stores import fill_store

from rlhf_operator.page.answers.paths import answer
from rlhf_operator.page.folder.catalog import Catalog


def ask(folder, name, path=""):
    catalog = Catalog([folder])
    ids = {run.summary()["name"]: run.id for run in catalog.runs()}
    return answer(catalog, f"/runs/{ids[name]}{path}", {})


def from_step(store: str, step: object) -> dict:
    return {"checkpoint": {"startFrom": {"store": store, "step": step}}}


@pytest.fixture
def runs(tmp_path):
    """Two clones of a run whose store is in its folder, one of them with a clone of its own in a bucket."""
    write_run(tmp_path / "first", name="first")
    inner = (tmp_path / "first" / "checkpoints").as_uri()
    write_run(tmp_path / "late", name="late", spec=from_step(inner, 30))
    own = {"store": "s3://bucket/early", "startFrom": {"store": inner + "/", "step": 10}}
    write_run(tmp_path / "early", name="early", spec={"checkpoint": own})
    write_run(tmp_path / "last", name="last", spec=from_step("s3://bucket/early", 20))
    write_run(tmp_path / "odd", name="odd", spec=from_step(inner, "many"))
    return tmp_path


def named(clones: dict) -> tuple:
    origin = clones["origin"]
    return (
        origin and (origin["step"], origin["run"] and origin["run"]["name"]),
        [(each["step"], each["run"]["name"]) for each in clones["clones"]],
    )


def test_a_run_has_its_clones_in_the_order_of_their_steps(runs):
    assert named(ask(runs, "first", "/clones")) == (None, [(10, "early"), (30, "late")])


def test_a_clone_has_its_origin_and_clones_of_its_own(runs):
    assert named(ask(runs, "early", "/clones")) == ((10, "first"), [(20, "last")])


def test_an_origin_that_is_not_among_the_runs_has_its_store_alone(tmp_path):
    write_run(tmp_path, name="alone", spec=from_step("s3://bucket/elsewhere", 5))
    origin = {"store": "s3://bucket/elsewhere", "step": 5, "run": None}
    assert ask(tmp_path, "alone", "/clones") == {"origin": origin, "clones": []}


def test_the_best_snapshot_has_the_highest_evaluation(tmp_path):
    write_run(tmp_path, name="one")
    for step, reward in ((20, 0.9), (30, 0.7)):
        fill_store(tmp_path / "checkpoints", {}, step=step, reward=reward)
    checkpoints = ask(tmp_path, "one")["checkpoints"]
    assert [(each["step"], each["best"]) for each in checkpoints] == [(20, True), (30, False)]


def test_a_step_can_be_verified_if_the_one_before_has_a_checkpoint(tmp_path):
    write_run(tmp_path, name="one")
    for step in (20, 21):
        fill_store(tmp_path / "checkpoints", {}, step=step)
    checkpoints = ask(tmp_path, "one")["checkpoints"]
    command = f"rlhf replay verify {tmp_path} --step 21"
    assert [each.get("repeat") for each in checkpoints] == [None, command]


def test_a_run_says_what_it_takes(tmp_path):
    """The first step does not count, and of broadcasts those alone that sent something."""
    steps = [
        {
            "step": step,
            "seconds": 100.0 / step,
            "train_seconds": 60.0 / step,
            "broadcast_seconds": float(step),
            "broadcast_bytes": 8 * (step == 4),
            "memory_peak_gigabytes": 50.0 - step,
        }
        for step in (1, 2, 4)
    ]
    plan = {"trainer": {"pods": 1, "gpus": 1, "memory": "47.5 GB = all of it"}}
    predicted = {"step": 30.0, "phases": {"train": 20.0}, "by": "runs/a"}
    write_run(
        tmp_path,
        name="one",
        steps=steps,
        status={"gpuSeconds": 7200, "cost": 3.5, "plan": plan},
        spec={"rollout": {"maxStaleness": 1}},
    )
    (tmp_path / "prediction.json").write_text(json.dumps(predicted) + "\n")
    assert ask(tmp_path, "one")["usage"] == {
        "gpuSeconds": 7200,
        "cost": 3.5,
        "costPerHour": None,
        "stepSeconds": 37.5,
        "phaseSeconds": {"train": 22.5, "broadcast": 4.0},
        "generatesAhead": True,
        "predicted": predicted,
        "unpredicted": None,
        "memoryPeak": 48.0,
        "memoryPredicted": {"trainer": "47.5 GB = all of it"},
    }


def test_memory_is_foreseen_by_the_manifest_where_no_status_has_it(tmp_path):
    spec = {
        "steps": 3,
        "model": {"policy": "a", "parameters": 1e9},
        "data": {"train": ["a.jsonl"]},
        "reward": {"functions": [{"function": "a:b"}]},
    }
    steps = [{"step": 1, "seconds": 1.0, "memory_peak_gigabytes": 20.0}]
    write_run(tmp_path, name="one", steps=steps, spec=spec)
    usage = ask(tmp_path, "one")["usage"]
    assert "1e9" in usage["memoryPredicted"]["trainer"]
    assert usage["predicted"] is None
    assert "had trained the same spec.model" in usage["unpredicted"]


@pytest.mark.parametrize(
    ("phase", "is_shown"), [("Running", True), ("Succeeded", False), ("Suspended", False)]
)
def test_a_run_that_goes_on_says_what_it_serves_and_what_waits(tmp_path, phase, is_shown):
    status = {"weightVersion": 4, "staleness": 0.5, "stalenessBound": 1, "queue": 7}
    write_run(tmp_path, name="one", phase=phase, status={**status, "unscored": None})
    assert ask(tmp_path, "one")["serving"] == (status if is_shown else {})


def test_memory_that_was_predicted_before_the_start_comes_first(tmp_path):
    write_run(tmp_path, name="one")
    (tmp_path / "prediction.json").write_text('{"memory": {"trainer": "2 GB: weights"}}\n')
    usage = ask(tmp_path, "one")["usage"]
    assert usage["memoryPredicted"] == {"trainer": "2 GB: weights"}
    assert (usage["predicted"], usage["unpredicted"] is None) == (None, False)
