"""Sandboxes in pods of their own: one for each episode, replaced by the operator, and kept from all else."""

import psutil
import pytest
from tests.cluster.images import ENVIRONMENT
from tests.cluster.images import OPERATOR as IMAGE
from tests.cluster.jobs.episodes import document, furnish
from tests.faults.matrix.account import metrics
from tests.faults.matrix.nodes import first_process
from tests.support.installed import SYSTEM, workspace
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs

pytestmark = pytest.mark.timeout(1200)
NAME, STEPS, EPISODES, RUN_S = "boxes", 3, 4, 600.0
SANDBOXES = [f"{NAME}-sandbox-{i}" for i in range(2)]
BOXED = '''
import os

from rlhf_trainer.extend import SandboxExhausted, open_sandbox

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
        filled = await self.sandbox.run(("python3", "-c", "b'x' * (1 << 30)"), seconds=30)
        assert filled.code == 128 + 9, "the kernel has ended the command, and the sandbox goes on"
        tried = await self.sandbox.run(("python3", "-c", TRY, os.environ["RLHF_HOST"]), seconds=30)
        assert tried.output == "No route to host\\n", tried
        await self.sandbox.run(("sh", "-c", "cat /dev/zero > /dev/shm/full"), seconds=30)
        try:
            await self.sandbox.write({"/tmp/tests": self.name})
            raise AssertionError("there is no memory for that")
        except SandboxExhausted:
            pass
        text = message["content"]
        return "", sum(ord(c) % 2 == 0 for c in text) / max(len(text), 1), True
'''


JOB = document(
    NAME,
    (EPISODES // 2, 2),
    save=STEPS,
    steps=STEPS,
    environment={"path": "boxed.py:Boxed", "maxTokens": 64, "replicas": 1, "pods": {"image": ENVIRONMENT}},
    sandbox={
        "replicas": len(SANDBOXES),
        "pods": {"image": IMAGE, "resources": {"limits": {"memory": "256Mi"}}},
    },
    workspace={"files": {"boxed.py": BOXED}},
)


def test_each_episode_has_a_pod_of_its_own_and_one_whose_pod_dies_another(jobs: Jobs) -> None:
    furnish(jobs, NAME)
    jobs.apply(JOB)
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
