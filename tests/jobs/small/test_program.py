"""A job whose episodes an agent's program plays, with a real vLLM: it learns, and a program that fails costs itself."""

import json
import sys
from pathlib import Path

from tests.support.rlhf import succeed
from tests.support.tiny.models import tiny_model

STEPS, TURNS = 8, 2
AGENT = """
# The reward is the share of even characters in the policy's turns: what any model learns in a few steps. The row n1 has
# a program that fails, and those of the last ones forget what they said, so that their second turn is a branch.
import json, os, sys, urllib.request

row, messages, even, count = json.load(sys.stdin), [], 0, 0
for number in range(2):
    messages = [] if row["name"] > "n3" else messages
    messages.append({"role": "user", "content": f"{row['name']} {number}"})
    body = json.dumps({"messages": messages, "temperature": 0}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as reply:
        messages.append(json.load(reply)["choices"][0]["message"])
    even += sum(ord(c) % 2 == 0 for c in messages[-1]["content"])
    count += len(messages[-1]["content"])
if row["name"] == "n1":
    sys.exit("no tool")
print(json.dumps({"reward": even / count if count else 0.0}))
"""


def test_a_program_that_asks_over_the_openai_api_trains_the_policy(tmp_path: Path) -> None:
    tiny_model(tmp_path / "model", tie=False, seed=0, chat=True)
    rows = [{"prompt": f"Thing {i}: ", "name": f"n{i}"} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "agent.py").write_text(AGENT)
    spec = {
        "algorithm": "grpo",
        "steps": STEPS,
        "seed": 1,
        "model": {"dtype": "float32", "policy": str(tmp_path / "model")},
        "data": {"train": [str(tmp_path / "rows.jsonl")], "maxPromptLength": 64, "promptsPerStep": 4},
        "sampling": {"responsesPerPrompt": 8, "maxNewTokens": 12},
        "rollout": {"maxStaleness": 1},
        "grpo": {"klCoefficient": 0, "minibatchSize": 32},
        "environment": {
            "program": [sys.executable, "-I", str(tmp_path / "agent.py")],
            "maxTokens": 128,
        },
        "reward": {"maxFailedShare": 0.5},
        "optimizer": {"learningRate": 4e-3},
        "checkpoint": {"everySteps": STEPS},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "agent"}}
    (tmp_path / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    finished = succeed(tmp_path / "job.yaml", tmp_path / "run")
    steps = {line["step"]: line for line in finished.steps}
    assert [*steps] == [*range(1, STEPS + 1)]
    first, last = ([steps[i]["reward_mean"] for i in some] for some in ((1, 2), (STEPS - 1, STEPS)))
    assert sum(last) / 2 > sum(first) / 2 + 0.1
    assert {line["turns_mean"] for line in steps.values()} == {TURNS}
    assert 0 < sum(line["branches_mean"] for line in steps.values()) < STEPS, "of the last rows alone"
    assert max(line["logprob_difference"] for line in steps.values() if "logprob_difference" in line) < 1e-4
    assert sum(line["episodes_failed"] for line in steps.values()) % 8 == 0, "those of the row n1 alone"
    log = finished.log("trainer-0")
    assert "exit code 1: no tool" in log
    assert log.count("have temperature, which have no effect") <= 2, "once in each worker"
