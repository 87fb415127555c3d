"""Frozen parts of a policy go to each generator once, and again to one that was killed and came back."""

import json
import os

from tests.jobs.small.test_bad_input import FUNCTIONS, JOB
from tests.support.rlhf import succeed
from tests.support.tiny.models import tiny_model


def test_a_generator_that_came_back_gets_the_frozen_parts_again_and_the_others_do_not(tmp_path):
    """Of two ranks, which have each weight in part."""
    model = tiny_model(tmp_path / "model", tie=False, seed=0)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"Say {i}"}) + "\n" for i in range(8)))
    (tmp_path / "scores_of_this_test.py").write_text(FUNCTIONS)
    spec = {**JOB["spec"], "algorithm": "grpo", "steps": 5, "generator": {"replicas": 2}, "ppo": {}}
    spec |= {"grpo": {"klCoefficient": 0, "minibatchSize": 8}}
    spec |= {"sampling": {"maxNewTokens": 8, "responsesPerPrompt": 2}}
    spec |= {"model": {**JOB["spec"]["model"], "policy": str(model), "freeze": ["embed_tokens", "layers.0"]}}
    spec |= {"data": {**JOB["spec"]["data"], "train": [str(tmp_path / "rows.jsonl")]}}
    spec |= {"trainer": {"processesPerReplica": 2, "deepspeed": {"zero_optimization": {"stage": 3}}}}
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "spec": spec}))
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    finished = succeed(
        tmp_path / "job.yaml",
        tmp_path / "run",
        PYTHONPATH=paths,
        RLHF_FAULTS="tests.support.faults:kill_generator_before_the_first_bytes",
    )
    assert finished.status["roles"]["generator"]["restarts"] == 1
    trainer = finished.log("trainer-0")
    (both, again) = (line for line in trainer.splitlines() if "received the frozen weights" in line)
    assert "generator-0, generator-1: received" in both
    assert " generator-1: received" in again
    frozen = int(again.split(" bytes")[0].rsplit(" ", 1)[1])
    first, *_ = sent = [line["broadcast_bytes"] for line in finished.steps]
    assert sent == [first, first, first, 2 * first + frozen, first]
    assert all(line["logprob_difference"] < 1e-4 for line in finished.steps)
