"""All mistakes of a manifest are told at once, and none that only follows from another."""

import json
from pathlib import Path

import pytest
from tests.unit.api.manifests import document, refusals

from rlhf_api.errors.problem import InvalidJob
from rlhf_api.manifest.load import composed
from rlhf_operator.cli import main

CASES = [
    # wrong types beside broken rules, and the fields that are told
    (("spec.seed=abc", "spec.ppo.minibatchSize=9"), ["spec.seed", "spec.ppo.minibatchSize"]),
    (("spec.steps=ten", "spec.model.dtype=bf16", "spec.trainer.sequenceParallelSize=2"), None),
    (("spec.steps=null", "spec.grpo.epochs=2"), ["spec.steps", "spec.grpo"]),
    (("spec.stepz=4", "spec.seed=abc", "spec.rollout.importanceCap=3"), None),
    # what a rule says with the wrong field's default, or of what the field stands in, is no mistake of the user's
    (
        ("spec.sampling.maxNewTokens=many", "spec.trainer.microBatchTokens=700"),
        ["spec.sampling.maxNewTokens"],
    ),
    (("spec.data.promptsPerStep='512'", "spec.ppo={minibatchSize: 256}"), ["spec.data.promptsPerStep"]),
    (("spec.data.promptsPerStep='512'", "spec.ppo={valueMinibatchSize: 300}"), ["spec.data.promptsPerStep"]),
    (("spec.model.policy=5",), ["spec.model.policy"]),
    (("spec.data.train[0]=3",), ["spec.data.train[0]"]),
    (("spec.ppo.klCoefficient='0.1'", "spec.ppo.klTarget=3"), ["spec.ppo.klCoefficient"]),
    (
        ("spec.generator={sharedWithTrainer: 'yes', replicas: 2}", "spec.reference.replicas=no"),
        ["spec.generator.sharedWithTrainer", "spec.reference.replicas"],
    ),
    (("spec.replay.streamDataLoaderType=dynamo", "spec.rollout.maxStaleness=1"), None),
]


@pytest.mark.parametrize(("overrides", "reported_fields"), CASES, ids=[case[0][0] for case in CASES])
def test_wrong_types_hide_no_rule_and_make_none(overrides, reported_fields):
    expected = reported_fields or [override.partition("=")[0] for override in overrides]
    if overrides[0].startswith("spec.replay"):
        expected = ["spec.replay.streamDataLoaderType"]
    assert sorted(refusals(*overrides)) == sorted(expected)


def test_every_bad_override_is_told(tmp_path):
    (tmp_path / "job.yaml").write_text(json.dumps(document()))
    with pytest.raises(InvalidJob) as caught:
        composed(tmp_path / "job.yaml", ["steps={", "seed=1", "data.train[5]=x", "model[0]=y"])
    places = [problem.where.split(":")[0] for problem in caught.value.problems]
    assert places == ["--set steps", "--set data.train[5]", "--set model[0]"]


def test_files_are_looked_at_whatever_else_is_wrong(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ['{"prompt": "a"}', '{"promt": "a"}', "{", '{"prompt": 3}']
    Path("rows.jsonl").write_text("\n".join(rows) + "\n")
    made = document(
        *("spec.seed=abc", "spec.ppo.minibatchSize=9", "spec.data.train=[rows.jsonl, nope.jsonl]"),
        *("spec.model.policy=./none", "spec.reward.functions=[{function: 'nobody.here:f'}]"),
    )
    Path("job.yaml").write_text(json.dumps(made))
    assert main(["validate", "job.yaml"]) == 2
    error_lines = [line.removeprefix("error: ") for line in capsys.readouterr().err.splitlines()]
    assert [line.split(": ")[0] for line in error_lines] == [
        "spec.seed",
        "spec.ppo.minibatchSize",
        *["spec.data.train[0]"] * 3,
        "spec.data.train[1]",
        "spec.model.policy",
        "spec.reward.functions[0].function",
    ]
    assert [f"rows.jsonl:{i}" in line for i, line in zip((2, 3, 4), error_lines[2:5], strict=True)] == [
        True
    ] * 3
    assert main(["validate", "job.yaml", "--no-files"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_of_many_bad_rows_the_first_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("{}\n" * 40)
    Path("job.yaml").write_text(
        json.dumps(document("spec.data.train=[rows.jsonl]", "spec.reward.functions=[]"))
    )
    assert main(["validate", "job.yaml"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("further rows of rows.jsonl were not looked at; `rlhf data check` names all")
