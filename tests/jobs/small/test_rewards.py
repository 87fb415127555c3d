"""A run whose reward is functions, one of them of tokens, a service, a program and a model of tokens, with a response
that one dies of, and a prompt that is too long and left out. Held-out responses have metrics of each kind."""

import json
import os
import re
import subprocess
import sys

import pytest
from tests.jobs.small.test_bad_input import JOB
from tests.support.ports import free_port
from tests.support.rlhf import ROOT, lines, run
from tests.support.tiny.models import byte_tokenizer, small_llama, tiny_model
from tests.unit.trainer.scoring.test_reward_program import NONE
from transformers import LlamaForTokenClassification

FUNCTIONS = """
import os

def letters(prompts, responses, rows):
    if any(row["dies"] for row in rows):
        os._exit(7)
    return [float(len(response)) for response in responses]

def steps(prompts, responses, rows, tokens):
    return [[0.25] * len(found) for found in tokens]
"""


@pytest.mark.skipif(bool(NONE), reason=NONE)
def test_three_kinds_of_rewards_and_a_prompt_that_has_none(tmp_path):
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)
    tiny_model(tmp_path / "model", tie=False, seed=0)
    rows = [{"prompt": f"Tell me about {i}", "answer": "No.", "dies": i == 0} for i in range(8)]
    rows.append({"prompt": "Tell me more. " * 500, "answer": "No.", "dies": True})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    (tmp_path / "functions_of_this_run.py").write_text(FUNCTIONS)
    small_llama(LlamaForTokenClassification, num_labels=1).save_pretrained(tmp_path / "gold")
    byte_tokenizer().save_pretrained(tmp_path / "gold")
    port = free_port()
    metrics = [
        {"name": "length", "function": "functions_of_this_run:letters", "retries": 0},
        {"name": "correct", "url": f"http://127.0.0.1:{port}/score"},
        {"name": "down", "url": f"http://127.0.0.1:{free_port()}/score", "retries": 0},
        {"name": "true", "program": {"command": ["true"]}},
        {"name": "judge", "model": "gold"},
    ]
    functions = [
        {"function": "functions_of_this_run:letters", "retries": 1},
        {"function": "functions_of_this_run:steps"},
        {"name": "correct", "url": f"http://127.0.0.1:{port}/score", "weight": 2.0},
        {"name": "true", "program": {"command": ["true"]}, "weight": 0.5},
    ]
    spec = {**JOB["spec"], "steps": 2, "reward": {"functions": functions, "maxFailedShare": 0.5}}
    gold = {"name": "gold", "model": str(tmp_path / "gold"), "weight": 0}
    spec["reward"] |= {"fineGrained": True, "models": [gold]}
    spec["evaluation"] = {"data": [str(tmp_path / "held_out.jsonl")], "everySteps": 2, "metrics": metrics}
    spec |= {"model": {"dtype": "float32", "policy": str(tmp_path / "model")}}
    spec |= {"data": {**spec["data"], "train": [str(tmp_path / "rows.jsonl")], "overlong": "drop"}}
    (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "spec": spec}))
    server = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "rewards" / "server.py", "--port", str(port)]
    )
    try:
        paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
        finished = run(tmp_path / "job.yaml", tmp_path / "run", PYTHONPATH=paths)
    finally:
        server.kill()
        server.wait()
    assert finished.code == 0, finished.output
    for line in finished.steps:
        assert (line["reward_true_mean"], line["reward_correct_mean"]) == (1.0, 0.0)
        assert line["reward_mean"] == line["reward_mean"], "not NaN"
        assert (
            line["reward_true_without_spread_share"],
            line["reward_letters_without_spread_share"] < 1,
        ) == (1, True)
        assert 0.25 <= line["reward_steps_mean"] <= 0.25 * 8, "a number for each of up to 8 tokens"
        assert min(line[f"reward_{name}_seconds"] for name in ("letters", "correct", "true")) > 0
    samples = [json.loads(line) for line in (finished.workdir / "samples.jsonl").read_text().splitlines()]
    weights = {"gold": 0.0, "letters": 1.0, "steps": 1.0, "correct": 2.0, "true": 0.5}
    totals = [sum(weights[name] * score for name, score in sample["rewards"].items()) for sample in samples]
    assert [sample["score"] for sample in samples] == pytest.approx(totals), (
        "each reward's own score, told apart"
    )
    assert "1 of 9 rows are too long, 1 are left out" in finished.status["overlong"]
    assert sum(line["responses_dropped"] for line in finished.steps) == 1
    assert (finished.status["ledger"]["dropped"], finished.status["ledger"]["lost"]) == (1, 0)
    judged = lines(finished.workdir / "evaluation.jsonl")
    assert [line["step"] for line in judged] == [0, 2]
    for line in judged:
        counts = [line[f"{name}_count"] for name in ("length", "correct", "down", "true", "judge")]
        assert counts == [7, 8, 0, 8, 8], "one has no length, and none is zero since a service is down"
        assert (line["true_mean"], line["correct_mean"], line["down_mean"]) == (1.0, 0.0, None)
        assert line["mean"] == line["length_mean"]
        assert "8 of 8 responses have no score (down: http://" in line["down_failed"]
        assert abs(line["judge_mean"]) > 0
        (names,) = {tuple(sample["scores"]) for sample in line["samples"]}
        assert names == ("length", "correct", "down", "true", "judge")
    assert re.search(
        r"evaluation from step 0 to 2: held_out  length \S+ -> \S+  correct 0 -> 0  true", finished.output
    )
    assert "letters: the function's process ended with exit code 7" in finished.log("trainer-0")
