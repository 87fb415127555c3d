"""Sandboxes in pods of their own: one for each episode, replaced by the operator, and kept from all else."""

import json
from typing import Any

import psutil
import pytest
from tests.cluster.images import ENVIRONMENT
from tests.cluster.images import OPERATOR as IMAGE
from tests.faults.matrix.account import metrics
from tests.faults.matrix.nodes import first_process
from tests.support.installed import SYSTEM, workspace
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs
from tests.support.tiny.models import tiny_model

pytestmark = pytest.mark.timeout(1200)
NAME, STEPS, EPISODES, RUN_S = "boxes", 3, 4, 600.0
SANDBOXES = [f"{NAME}-sandbox-{i}" for i in range(2)]
BOXED = '''
import os

from rlhf_trainer.extend import open_sandbox

TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 8000), timeout=20)
except OSError as error:
    print(error.strerror)
"""


class Boxed:
    async def reset(self, row):
        self.name, self.sandbox = row["name"], await open_sandbox()
        await self.sandbox.write({"/tmp/name": self.name})

    async def step(self, message):
        ran = await self.sandbox.run(("sh", "-c", "cat /tmp/name; hostname; sleep 2; ls /workspace"), seconds=20)
        assert ran.output.startswith(f"{self.name}boxes-sandbox-"), ran
        assert ran.code == 2, "it has no work directory"
        tried = await self.sandbox.run(("python3", "-c", TRY, os.environ["RLHF_HOST"]), seconds=30)
        assert tried.output == "No route to host\\n", tried
        text = message["content"]
        return "", sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1), True
'''


def document() -> dict[str, Any]:
    spec = {
        "algorithm": "grpo",
        "steps": STEPS,
        "seed": 1,
        "model": {"dtype": "float32", "policy": f"{NAME}/model"},
        "data": {"train": [f"{NAME}/rows.jsonl"], "maxPromptLength": 32, "promptsPerStep": EPISODES // 2},
        "sampling": {"responsesPerPrompt": 2, "maxNewTokens": 8},
        "grpo": {"klCoefficient": 0, "minibatchSize": EPISODES},
        "environment": {
            "path": "boxed.py:Boxed",
            "maxTokens": 64,
            "replicas": 1,
            "pods": {"image": ENVIRONMENT},
        },
        "sandbox": {"replicas": len(SANDBOXES), "pods": {"image": IMAGE}},
        "generator": {"sharedWithTrainer": True},
        "workspace": {"files": {"boxed.py": BOXED}},
        "checkpoint": {"store": f"s3://checkpoints/{NAME}", "everySteps": STEPS},
        "pods": {"secrets": ["seaweedfs"]},
        "env": {"OMP_NUM_THREADS": "1"},
    }
    return {
        "apiVersion": "rlhf.dev/v1alpha1",
        "kind": "RLHFJob",
        "metadata": {"name": NAME},
        "spec": spec,
    }


def furnish(jobs: Jobs) -> None:
    folder = workspace(jobs) / NAME
    tiny_model(folder / "model", tie=False, seed=0)
    rows = [{"prompt": f"Thing {i}: ", "name": f"n{i}"} for i in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in folder.rglob("*"):
        file.chmod(0o755)  # another user reads them


def test_each_episode_has_a_pod_of_its_own_and_one_whose_pod_dies_another(jobs: Jobs) -> None:
    furnish(jobs)
    jobs.apply(document())
    try:
        with jobs.explained(SYSTEM):
            check(jobs)
    finally:
        jobs.kubectl("delete", "rlhfjob", NAME)


def check(jobs: Jobs) -> None:
    had = set[str]()

    def busy() -> psutil.Process | None:
        """The first process of a pod that runs a command."""
        pods = {name: uid for name, uid in jobs.pods().items() if "sandbox" in name}
        assert pods.keys() <= {*SANDBOXES}
        had.update(pods.values())
        for uid in pods.values():
            try:
                server = psutil.Process(first_process(uid))
                if any(child.name() == "sleep" for child in server.children(recursive=True)):
                    return server
            except (LookupError, psutil.NoSuchProcess):
                continue
        return None

    server = eventually(busy, "a command in a sandbox", RUN_S)
    server.kill()

    def over() -> bool:
        busy()
        return jobs.status(NAME).get("phase") in ("Succeeded", "Failed")

    eventually(over, "the job's end", RUN_S)
    status = jobs.until(NAME, "Succeeded", timeout=RUN_S)
    assert {role: each["restarts"] for role, each in status["roles"].items()} == dict.fromkeys(
        ("trainer", "environment", "sandbox"), 0
    )
    steps = metrics(workspace(jobs) / "runs" / NAME)
    assert [*steps] == list(range(1, STEPS + 1))
    assert sum(line["episodes_failed"] for line in steps.values()) == 0
    assert len(had) > STEPS * EPISODES // 2, "each episode ended its pod"
