"""`kubectl rlhf selftest` as a user runs it: its job's pods are deleted, and at the end all that it made."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.matrix import reward
from tests.support.installed import JOBS, SYSTEM, workspace
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs
from tests.support.rlhf import heed_signals
from tests.support.tiny.models import tiny_model

from rlhf_trainer.export.model_files import share

RUN_S = 420
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def manifest(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with a trainer that generates and a reward; its model, prompts and reward function are in the workspace."""
    there = workspace(jobs)
    share(tiny_model(there / "tiny", tie=False, seed=1))
    (there / "scoring.py").write_text(Path(reward.__file__).read_text())
    prompts = [{"prompt": f"the {i}th thing is"} for i in range(48)]
    (there / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    spec = {
        "algorithm": "grpo",
        "steps": 500,
        "model": {"policy": "tiny", "dtype": "float32"},
        "data": {"train": ["prompts.jsonl"], "maxPromptLength": 32, "promptsPerStep": 64},
        "sampling": {"maxNewTokens": 64, "responsesPerPrompt": 4},
        "optimizer": {"learningRate": 1e-3},
        "grpo": {"klCoefficient": 0.0},
        "generator": {"sharedWithTrainer": True},
        "reward": {"functions": [{"function": "scoring:shorter"}]},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": "tiny"}}
    file = tmp_path_factory.mktemp("selftest") / "job.yaml"
    file.write_text(json.dumps({**head, "spec": spec}))
    return file


def start(jobs: Jobs, manifest: Path, *arguments: str) -> subprocess.Popen[str]:
    main = "import sys; from rlhf_operator.kubectl import kubectl_main; sys.exit(kubectl_main())"
    flags = (f"--kubeconfig={jobs.kubeconfig}", "-n", JOBS)
    return subprocess.Popen(
        [sys.executable, "-c", main, "selftest", str(manifest), *arguments, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=heed_signals,
    )


def nothing_is_left(jobs: Jobs) -> bool:
    """Of the job, of its pods and of the one that reads, and of what they wrote."""
    items = jobs.get("rlhfjobs,pods")["items"]
    runs = workspace(jobs) / "runs"
    names = [each["metadata"]["name"] for each in items] + [each.name for each in runs.glob("*")]
    return not [name for name in names if "selftest" in name]


def test_a_sound_job_passes_every_check(jobs: Jobs, manifest: Path) -> None:
    process = start(jobs, manifest)
    with jobs.explained(SYSTEM):
        output, _ = process.communicate(timeout=RUN_S)
        print(output)
        assert process.returncode == 0
    table = dict(re.findall(r"^(\w+(?: \w+)?)   +(pass|FAIL|-) ", output, flags=re.M))
    kills = [f"kill {role}" for role in ("reward", "trainer")]
    assert table == dict.fromkeys(["drift", "agreement", *kills, "resume", "ledger", "canary"], "pass")
    assert "lost 0, trained twice 0" in output
    assert nothing_is_left(jobs)


def test_what_stops_it_is_said_and_ctrl_c_leaves_nothing_behind(jobs: Jobs, manifest: Path) -> None:
    """An image that no registry has, which nothing but the pods' events tells of."""
    process = start(jobs, manifest, "pods.image=localhost/nobody:none")
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "ErrImage" in line or "ImagePullBackOff" in line:
            process.send_signal(signal.SIGINT)
            break
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, [*printed, output]
    assert "interrupted" in output
    eventually(lambda: nothing_is_left(jobs), "nothing is left", 60)
