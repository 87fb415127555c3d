"""A whole run whose generator serves, from some moment on, other weights than it was given."""

import json

from tests.support.rlhf import run
from tests.support.tiny.models import tiny_model


def test_a_weight_that_changes_while_it_serves_ends_the_job(tmp_path):
    """One value in one of two generators changes by a hundredth: no request fails, and no response shows it."""
    tiny_model(tmp_path / "model", tie=False, seed=1)
    rows = [{"prompt": f"the {i}th thing is"} for i in range(48)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "algorithm": "grpo",
        "steps": 50,
        "model": {"policy": str(tmp_path / "model"), "dtype": "float32"},
        "data": {"train": [str(tmp_path / "rows.jsonl")], "maxPromptLength": 32, "promptsPerStep": 16},
        "sampling": {"maxNewTokens": 8, "responsesPerPrompt": 4},
        "grpo": {"klCoefficient": 0.0},
        "generator": {"replicas": 2},
        "reward": {"functions": [{"function": "tests.faults.matrix.reward:shorter"}]},
        "checkpoint": {"everySteps": 1},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "spoilt"}}
    (tmp_path / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    ended = run(
        tmp_path / "job.yaml", tmp_path / "run", RLHF_FAULTS="tests.support.faults:spoil_a_served_weight"
    )
    assert ended.code == 1, ended.output
    assert (ended.status["phase"], ended.status["health"]["reason"]) == ("Failed", "OtherWeights")
    message = "generator-1 (worker 0): model.norm.weight is no longer what was loaded as weight version 2"
    assert message in ended.output
    assert message in ended.status["message"]
    assert ended.status["health"]["step"] == 3, "the first that it had a part in"
    assert ended.status["lastCheckpoint"]["step"] == 2, "nothing of that step is saved"
    assert [line["step"] for line in ended.steps] == [1, 2]
    assert {role["restarts"] for role in ended.status["roles"].values()} == {0}, "nor is it tried again"
