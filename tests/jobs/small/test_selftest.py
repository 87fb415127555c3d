"""`rlhf selftest` as a user runs it: every check on a real job with vLLM; a Ctrl-C in the middle."""

import json
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from tests.support.rlhf import launch
from tests.support.tiny.models import tiny_model

TIMEOUT = 1500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of a small model with a reward function and a reference, whose store and prompts are its own."""
    folder = tmp_path_factory.mktemp("selftest")
    tiny_model(folder / "model", tie=False, seed=1)
    prompts = [{"prompt": f"the {i}th thing is", "answer": " good"} for i in range(48)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    spec = {
        "algorithm": "grpo",
        "steps": 500,
        "model": {"policy": str(folder / "model"), "dtype": "float32"},
        "data": {
            "train": [str(folder / "rows.jsonl")],
            "maxPromptLength": 32,
            "promptsPerStep": 64,
        },
        "sampling": {"maxNewTokens": 64, "responsesPerPrompt": 4},
        "optimizer": {"learningRate": 1e-4, "warmupSteps": 50},
        "reward": {"functions": [{"function": "tests.faults.matrix.reward:shorter"}]},
        "checkpoint": {"store": (folder / "store").as_uri()},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "small"}}
    (folder / "job.yaml").write_text(json.dumps({**head, "spec": spec}))
    return folder


def start(folder: Path, temporary: Path, *arguments: str) -> subprocess.Popen[str]:
    return launch("selftest", str(folder / "job.yaml"), *arguments, TMPDIR=str(temporary))


def test_a_sound_job_passes_every_check(folder, tmp_path):
    before = sorted(folder.rglob("*"))
    process = start(folder, tmp_path)
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, output[-6000:]
    table = dict(re.findall(r"^(\w+(?: \w+)?)   +(pass|FAIL|-) ", output, flags=re.M))
    kills = [f"kill {role}" for role in ("reward", "reference", "trainer", "generator")]
    assert table == dict.fromkeys(["drift", "agreement", *kills, "resume", "ledger", "canary"], "pass")
    assert "generator-0 started again" in output
    assert "lost 0, trained twice 0" in output
    assert sorted(folder.rglob("*")) == before, "nothing was written to the job's own store"
    assert not list(tmp_path.glob("rlhf-selftest-*"))


def test_ctrl_c_leaves_nothing_behind(folder, tmp_path):
    process = start(
        folder, tmp_path, "algorithm=sft", "reward={}", "sampling={}", "data.maxResponseLength=16"
    )
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "killing trainer-0" in line:
            process.send_signal(signal.SIGINT)
            break
    below = psutil.Process(process.pid).children(recursive=True)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130, [*printed, output]
    assert "interrupted" in output
    assert not psutil.wait_procs(below, timeout=120)[1]
    assert not list(tmp_path.glob("rlhf-selftest-*"))
