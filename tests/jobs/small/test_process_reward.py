"""A process reward model as its job leaves it is the reward of another job, whose policy it scores step by step, alone
or with another model."""

import json

import pytest
import torch
from tests.jobs.small.test_bad_input import JOB
from tests.support.rlhf import lines, succeed
from tests.support.tiny.models import byte_tokenizer, tiny_model
from transformers import AutoModelForTokenClassification

JUDGED = [
    {"prompt": f"Tell {i}", "steps": ["one", "two" if i % 2 else "axe"], "labels": [1, i % 2]}
    for i in range(8)
]


def test_what_is_trained_on_steps_rewards_the_steps_of_a_policy(tmp_path):
    tiny_model(tmp_path / "model", tie=False, seed=0)
    (tmp_path / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in JUDGED))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"Say {i}"}) + "\n" for i in range(8)))
    data = {"train": [str(tmp_path / "judged.jsonl")], "promptsPerStep": 8}
    data |= {"maxPromptLength": 16, "maxResponseLength": 16}
    spec = {"algorithm": "process_reward", "steps": 8, "data": data, "optimizer": {"learningRate": 0.01}}
    spec |= {"model": {"dtype": "float32", "policy": str(tmp_path / "model")}}
    (tmp_path / "reward.yaml").write_text(json.dumps({**JOB, "spec": spec}))
    trained = succeed(tmp_path / "reward.yaml", tmp_path / "reward")
    assert trained.steps[-1]["loss"] < trained.steps[0]["loss"]
    model = AutoModelForTokenClassification.from_pretrained(trained.workdir / "policy").eval()

    also = {"name": "also", "model": str(trained.workdir / "policy"), "weight": 0.5}
    spec = {**JOB["spec"], "steps": 2, "reward": {"stepScores": "last", "models": [also]}}
    spec |= {"model": {**JOB["spec"]["model"], "policy": str(tmp_path / "model")}}
    spec["model"] |= {"reward": str(trained.workdir / "policy"), "critic": str(tmp_path / "model")}
    spec |= {"data": {**JOB["spec"]["data"], "train": [str(tmp_path / "rows.jsonl")]}}
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "spec": spec}))
    short = "spec.sampling={maxNewTokens: 2, responsesPerPrompt: 8}"
    whole = succeed(tmp_path / "job.yaml", tmp_path / "whole", short)
    compared = 0
    for sample in lines(whole.workdir / "samples.jsonl"):
        tokens = byte_tokenizer()(sample["prompt"] + sample["response"])["input_ids"]
        if sample["finished"] or len(tokens) != sample["prompt_length"] + sample["response_length"]:
            continue  # its text says not which tokens were sampled
        with torch.no_grad():
            odds = model(torch.tensor([tokens])).logits[0, -1, 0]
        score = pytest.approx(float(torch.sigmoid(odds)), abs=1e-4)
        assert sample["rewards"] == {"model": score, "also": score}
        assert sample["score"] / 1.5 == score
        compared += 1
    assert compared
    each = ("spec.reward={fineGrained: true, stepScores: each}", "spec.steps=1")
    (line,) = succeed(tmp_path / "job.yaml", tmp_path / "each", *each).steps
    assert 0 < line["reward_mean"] < 8, "a probability for each step of up to 8 tokens"
