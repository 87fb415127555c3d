"""Roles that share GPUs are one pod with a container each, all real: each fails, and starts again, beside the others.

On CPUs the pod claims no device; all else is as with GPUs.
"""

from typing import Any

import pytest
from tests.faults.matrix.account import Prompts, metrics, newest
from tests.faults.matrix.cells import TURNS
from tests.faults.matrix.deployment import furnish
from tests.faults.matrix.manifest import PER_STEP, specification
from tests.support.installed import SYSTEM, workspace
from tests.support.kubernetes.kube import eventually, get, kubectl
from tests.support.kubernetes.operator import Jobs

pytestmark = pytest.mark.timeout(1800)
NAME, STEPS, START_S, STEP_S, RUN_S = "one", 60, 300.0, 240.0, 600.0
POD = f"{NAME}-trainer-0"
ENGINE, RANK = "rlhf_trainer.engines.vllm.serve.server", "rlhf_trainer.roles.trainer"
KILL = """
import psutil, sys
found = [p for p in psutil.process_iter(["cmdline"]) if sys.argv[1] in (p.info["cmdline"] or [])]
[p.kill() for p in found if "torchrun" not in " ".join(p.info["cmdline"])]
"""


def document() -> dict[str, Any]:
    spec = specification(TURNS, policy="policy", prompts="prompts.jsonl")
    spec["generator"] |= {"replicas": 1}
    spec |= {"steps": STEPS, "env": {"OMP_NUM_THREADS": "1"}}  # four roles share two cores
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": NAME}}
    return {**head, "spec": spec}


def test_engine_and_trainer_fail_and_start_again_beside_each_other(jobs: Jobs) -> None:
    furnish(workspace(jobs))
    jobs.apply(document())
    with jobs.explained(SYSTEM):
        check_run(jobs)
    jobs.kubectl("delete", "rlhfjob", NAME)


def check_run(jobs: Jobs) -> None:
    runs = workspace(jobs) / "runs" / NAME

    def reach(steps: int, seconds: float = STEP_S) -> None:
        eventually(lambda: newest(runs) >= steps, f"step {steps}", seconds)

    jobs.until(NAME, "Running", timeout=START_S)
    reach(2)
    assert jobs.pods().keys() == {POD}
    assert starts(jobs) == {"role": 0, "generator-0": 0, "reward-0": 0, "reference-0": 0}

    kill(jobs, "generator-0", ENGINE)
    eventually(lambda: starts(jobs)["generator-0"] == 1, "the engine is started again", STEP_S)
    reach(newest(runs) + 2)
    eventually(lambda: restarts(jobs, "generator") == 1, "the restart is counted", STEP_S)
    assert (starts(jobs)["role"], restarts(jobs, "trainer")) == (0, 0), "the trainer lives"

    kill(jobs, "role", RANK)
    eventually(lambda: starts(jobs)["role"] == 1, "the trainer is started again", STEP_S)
    reach(newest(runs) + 2)
    eventually(lambda: restarts(jobs, "trainer") == 1, "the restart is counted", STEP_S)
    assert starts(jobs) == {"role": 1, "generator-0": 1, "reward-0": 0, "reference-0": 0}

    jobs.patch(NAME, suspend=True)
    jobs.until(NAME, "Suspended", timeout=STEP_S)
    eventually(lambda: jobs.pods() == {}, "the pod is gone", STEP_S)
    jobs.patch(NAME, suspend=False)
    jobs.until(NAME, "Running", timeout=START_S)
    resumed = jobs.pods()
    assert resumed.keys() == {POD}
    assert (restarts(jobs, "generator"), restarts(jobs, "trainer")) == (1, 1), (
        "none of before is counted again"
    )

    status = jobs.until(NAME, "Succeeded", timeout=RUN_S)
    assert {name: role["restarts"] for name, role in status["roles"].items()} == {
        "trainer": 1,
        "generator": 1,
        "reward": 0,
        "reference": 0,
    }
    assert "was ended by SIGKILL" in status["roles"]["generator"]["lastFailure"]["reason"]
    assert [*metrics(runs)] == list(range(1, STEPS + 1))
    assert Prompts(f"file://{runs / 'checkpoints'}", PER_STEP).check() == (0, 0), "lost, trained on twice"

    eventually(lambda: pod(jobs)["status"]["phase"] != "Running", "the pod is over", STEP_S)
    assert jobs.pods() == resumed
    assert "resumed from the checkpoint" in jobs.kubectl("logs", POD)
    assert jobs.kubectl("logs", POD, "-c", "generator-0")


def pod(jobs: Jobs) -> dict[str, Any]:
    return get(jobs.kubeconfig, "pod", POD, "-n", jobs.namespace)


def starts(jobs: Jobs) -> dict[str, int]:
    """Number of times that the kubelet has started each container again."""
    return {each["name"]: each["restartCount"] for each in pod(jobs)["status"]["containerStatuses"]}


def restarts(jobs: Jobs, role: str) -> int:
    """As the job's status counts them."""
    count: int = jobs.status(NAME)["roles"][role]["restarts"]
    return count


def kill(jobs: Jobs, container: str, module: str) -> None:
    """The process of a module, in a container."""
    where = ("exec", POD, "-n", jobs.namespace, "-c", container)
    kubectl(jobs.kubeconfig, *where, "--", "python3", "-c", KILL, module)
