"""Seconds of a step are predicted before the start, at the rates of an earlier run of the same models."""

import json
import os
from pathlib import Path

import pytest
from tests.unit.api.manifests import job

from rlhf_api.contract.prediction import Prediction
from rlhf_api.contract.run import RunConfig
from rlhf_api.contract.status import JobStatus
from rlhf_api.estimate.sizes import NOTHING
from rlhf_operator.commands.conclusion import print_conclusion
from rlhf_operator.local.display.predicted import after_line, before_line
from rlhf_operator.local.records.prediction import predict, predict_seconds, write_prediction

SFT = (
    "spec.model={policy: some/model, parameters: 1.0e9, dtype: bfloat16}",
    *("spec.algorithm=sft", "spec.ppo={}", "spec.reward={}", "spec.steps=10", "spec.data.promptsPerStep=4"),
    *("spec.data.maxPromptLength=50", "spec.data.maxResponseLength=50"),
)


def leave_run(folder: Path, *settings: str, seconds: float, changed: float) -> None:
    """A run of full sequences whose training took `seconds` a step, after a slow first one."""
    folder.mkdir(parents=True)
    config = RunConfig(job="job", spec=job(*SFT, *settings).spec, workdir=str(folder))
    (folder / "run.json").write_text(config.model_dump_json(by_alias=True))
    rows = [
        {"step": step, "tokens": 400, "train_seconds": took, "seconds": took + 0.5}
        for step, took in enumerate((99.0, seconds, seconds), 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(folder / "metrics.jsonl", (changed, changed))


def test_the_newest_run_of_the_same_models_has_the_rates(tmp_path):
    leave_run(tmp_path / "old", seconds=9.0, changed=1)
    leave_run(tmp_path / "newer", seconds=2.0, changed=2)
    leave_run(tmp_path / "other", "spec.model.parameters=2.0e9", seconds=4.0, changed=3)
    leave_run(tmp_path / "broken", seconds=4.0, changed=4)
    (tmp_path / "broken" / "metrics.jsonl").write_text("{\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metrics.jsonl").write_text("{}\n")
    prediction = predict_seconds(tmp_path / "new", job(*SFT, "spec.data.promptsPerStep=8").spec, NOTHING)
    assert prediction == Prediction(step=4.0, phases={"train": 4.0}, by=str(tmp_path / "newer"))


def test_a_run_that_is_begun_anew_goes_by_its_former_self(tmp_path):
    leave_run(tmp_path / "run", seconds=2.0, changed=1)
    prediction = predict_seconds(tmp_path / "run", job(*SFT).spec, NOTHING)
    assert prediction == Prediction(step=2.0, phases={"train": 2.0}, by=str(tmp_path / "run"))


@pytest.mark.parametrize("settings", [(), ("spec.model.parameters=null",)])
def test_without_such_a_run_or_a_size_nothing_is_predicted(tmp_path, settings):
    if settings:
        leave_run(tmp_path / "old", *settings, seconds=2.0, changed=1)
    assert predict_seconds(tmp_path / "new", job(*SFT, *settings).spec, NOTHING) is None


def test_the_first_run_of_a_job_has_its_memory_predicted(tmp_path):
    prediction = predict(tmp_path / "new", job(*SFT).spec, NOTHING)
    assert (prediction.step, prediction.phases, prediction.by) == (None, {}, None)
    assert "1e9" in prediction.memory["trainer"]
    assert before_line(prediction, 10) is None
    assert after_line(prediction, {"step": 1.0}) is None


PREDICTION = Prediction(step=1.25, phases={"generate": 0.5, "train": 0.75}, by="runs/a")


def test_the_lines_say_what_is_predicted_and_what_it_took():
    assert before_line(PREDICTION, 100) == (
        "predicted: 1.25 s a step (generate 0.5, train 0.75), 100 steps in 2m 05s, at the rates of runs/a"
    )
    line = after_line(PREDICTION, {"step": 1.0, "generate": 0.4, "score": 0.1})
    assert line == "seconds of a step, and predicted: 1 (1.25, +25%); generate 0.4 (0.5)"
    assert after_line(PREDICTION, {}) is None


def test_the_end_of_a_run_without_predicted_seconds_reads_no_figure(tmp_path, capsys):
    leave_run(tmp_path / "run", seconds=2.0, changed=1)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    write_prediction(tmp_path / "run", Prediction(memory={"trainer": "2 GB"}))
    print_conclusion(JobStatus(phase="Succeeded", step=2, total_steps=2), "", tmp_path / "run", None, "")
    assert "predicted" not in capsys.readouterr().out


def test_the_end_of_a_run_has_both(tmp_path, capsys):
    leave_run(tmp_path / "run", seconds=2.0, changed=1)
    write_prediction(tmp_path / "run", PREDICTION)
    status = JobStatus(phase="Succeeded", step=3, total_steps=10)
    print_conclusion(status, "", tmp_path / "run", None, "")
    assert "  seconds of a step, and predicted: 2.5 (1.25, -50%); train 2 (0.75)" in capsys.readouterr().out
