"""Environments in pods of their own: played over the network, whichever pod dies or stops, and kept from all else."""

import psutil
import pytest
from tests.cluster.images import ENVIRONMENT as IMAGE
from tests.cluster.jobs.episodes import document, furnish
from tests.cluster.jobs.page import check_page
from tests.cluster.jobs.visitors import REJECTED, tried
from tests.faults.matrix.account import metrics
from tests.faults.matrix.nodes import first_process
from tests.support.installed import SYSTEM, workspace
from tests.support.kubernetes.kube import eventually, get
from tests.support.kubernetes.operator import Jobs

from rlhf_operator.job.ports import PORT

pytestmark = pytest.mark.timeout(1200)
NAME, STEPS, TURNS, RUN_S = "episodes", 8, 3, 600.0
TRAINER, *ENVIRONMENTS = (f"{NAME}-{role}" for role in ("trainer-0", "environment-0", "environment-1"))
EVEN = """
import asyncio


class Even:
    def __init__(self, turns):
        self.left = turns

    def reset(self, row):
        self.name = row["name"]

    async def step(self, message):
        await asyncio.sleep(0.5)
        text, self.left = message["content"], self.left - 1
        even = sum(ord(c) % 2 == 0 for c in text) / len(text) if text else 0.0
        return f" {self.name}, {self.left} left: ", even, not self.left
"""


JOB = document(
    NAME,
    (8, 4),
    save=2,
    steps=STEPS,
    environment={
        "path": "even_turns.py:Even",
        "settings": {"turns": TURNS},
        "maxTokens": 96,
        "replicas": len(ENVIRONMENTS),
        "pods": {"image": IMAGE},
    },
    workspace={"files": {"even_turns.py": EVEN}},
)


def test_a_job_plays_its_episodes_in_pods_that_die_and_stop_and_its_page_shows_them(jobs: Jobs) -> None:
    furnish(jobs, NAME)
    jobs.apply(JOB)
    try:
        with jobs.explained(SYSTEM):
            check(jobs)
    finally:
        jobs.kubectl("delete", "rlhfjob", NAME)


def check(jobs: Jobs) -> None:
    runs = workspace(jobs) / "runs" / NAME

    def made(steps: int) -> bool:
        return (runs / "metrics.jsonl").exists() and len(metrics(runs)) >= steps

    eventually(lambda: made(2), "two steps", RUN_S)
    before = jobs.pods()
    assert {TRAINER, *ENVIRONMENTS} == before.keys()
    trainer, ours = (
        get(jobs.kubeconfig, "pod", each, "-n", jobs.namespace) for each in (TRAINER, ENVIRONMENTS[0])
    )
    ends = [(trainer["status"]["podIP"], PORT), (trainer["status"]["hostIP"], 6443)]
    assert tried(jobs.kubeconfig, jobs.namespace, ENVIRONMENTS[0], ends) == [REJECTED, REJECTED]
    (container,) = ours["spec"]["containers"]
    assert "envFrom" not in container
    assert container["image"] == IMAGE != trainer["spec"]["containers"][0]["image"]

    killed, stopped = (psutil.Process(first_process(before[each])) for each in ENVIRONMENTS)
    killed.kill()
    eventually(lambda: made(4), "two more steps", RUN_S)
    stopped.suspend()  # no connection of it ends
    status = jobs.until(NAME, "Succeeded", timeout=RUN_S)
    restarts = {role: status["roles"][role]["restarts"] for role in ("environment", "trainer")}
    assert restarts["environment"] in (1, 2), "the stopped one may outlast the job, as its probe fails"
    assert restarts["trainer"] == 0
    assert status["lastCheckpoint"]["step"] == STEPS
    steps = metrics(runs)
    assert [*steps] == list(range(1, STEPS + 1))
    assert {line["turns_mean"] for line in steps.values()} == {TURNS}
    assert sum(line["episodes_failed"] for line in steps.values()) == 0
    check_page(jobs, NAME, STEPS)
