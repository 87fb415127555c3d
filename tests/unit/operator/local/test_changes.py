"""Messages of a resumed run about fields that are not as they were, and which of them it refuses to change."""

import pytest
from tests.unit.api.manifests import job

from rlhf_operator.local.records.changes import changed_fields, refused_changes

REWARD = "spec.reward.functions=[{function: 'm:f', weight: 2}]"


def test_each_changed_field_is_named_with_both_values():
    before = job(REWARD, "spec.optimizer.learningRate=1e-5", "spec.steps=10").spec
    after = job(
        "spec.reward.functions=[{function: 'm:g', weight: 2}]", "spec.optimizer.learningRate=1e-3"
    ).spec
    lines = [str(change) for change in changed_fields(before, after)]
    assert "spec.reward.functions[0].function: 'm:f' -> 'm:g'" in lines
    assert "spec.optimizer.learningRate: 1e-05 -> 0.001" in lines
    assert [line.partition(":")[0] for line in lines if "weight" in line] == []
    assert changed_fields(before, before) == []


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("spec.reward.functions=[{function: 'm:g', weight: 2}]", "spec.reward.functions[0].function"),
        ("spec.reward.functions=[{function: 'm:f', weight: 3}]", "spec.reward.functions[0].weight"),
        ("spec.reward.functions=[]", "spec.reward.functions"),
        ("spec.reward.models=[{name: a, model: m}]", "spec.reward.models"),
        ("spec.reward.scale=2", "spec.reward.scale"),
        ("spec.data.train=[other.jsonl]", "spec.data.train[0]"),
        ("spec.data.systemPrompt=Be kind.", "spec.data.systemPrompt"),
    ],
)
def test_another_goal_needs_to_be_accepted(override, field):
    changes = changed_fields(job(REWARD).spec, job(REWARD, override).spec)
    (problem,) = refused_changes(changes, "runs/x", accept=False)
    assert problem.where == field
    assert "add --accept-changes to go on all the same" in problem.message
    assert refused_changes(changes, "runs/x", accept=True) == []


@pytest.mark.parametrize(
    "override",
    [
        "spec.optimizer.learningRate=1e-3",
        "spec.steps=99",
        "spec.data.promptsPerStep=16",
        "spec.reward.replicas=2",
        "spec.reward.functions=[{function: 'm:f', weight: 2, concurrency: 9}]",
    ],
)
def test_other_fields_may_change(override):
    changes = changed_fields(job(REWARD).spec, job(REWARD, override).spec)
    assert changes
    assert refused_changes(changes, "runs/x", accept=False) == []


def test_what_identifies_a_run_cannot_change():
    changes = changed_fields(job().spec, job("spec.seed=1", "spec.model.policy=org/other").spec)
    fields = [problem.where for problem in refused_changes(changes, "runs/x", accept=True)]
    assert set(fields) == {"spec.seed", "spec.model.policy"}


def test_secrets_are_in_no_line():
    before, after = (job(f"spec.env.MY_TOKEN={value}").spec for value in ("hunter2", "hunter3"))
    assert changed_fields(before, after) == []
