"""The whole thing as its user does it, all real: helm, kubectl apply, pods with vLLM and DeepSpeed, an S3 server.

The shipped manifests run with fewer steps. What they share lies in a workspace that all pods mount.
"""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.jobs.network import check_network
from tests.support.installed import JOBS, SYSTEM, workspace
from tests.support.kubernetes.kube import eventually, get, kubectl
from tests.support.kubernetes.operator import Jobs

from rlhf_api.roles import Role
from rlhf_operator.job.names import token_name

ROOT = Path(__file__).parents[3]
START_S, RUN_S = 240.0, 420.0
END_S = 150.0
"""A grace of 15 s, the minute between two of the kubelet's rounds of removing ended containers, and its reports."""
pytestmark = pytest.mark.timeout(2400)
HOST_NETWORK = {"template": {"spec": {"hostNetwork": True}}}
MANY_STEPS = 400
"""More than are ever made: the run is told its end while it is suspended."""
ONE_THREAD = {"env": {"OMP_NUM_THREADS": "1"}}
"""Four roles share two cores here."""


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    """A shipped example with parts of its spec set."""
    document = yaml.safe_load((ROOT / "examples" / "sentiment" / f"{name}.yaml").read_text())
    return {**document, "spec": {**document["spec"], **ONE_THREAD, **spec}}


@pytest.fixture(scope="module")
def policy(jobs: Jobs) -> Jobs:
    """Fine-tuned by trainers in two pods, one of which dies on the way."""
    with jobs.explained(SYSTEM):
        check_two_trainers(jobs)
    jobs.kubectl("delete", "rlhfjob", "sft")
    return jobs


@pytest.fixture(scope="module")
def models(policy: Jobs) -> Jobs:
    """Models that PPO starts from: the fine-tuned policy, and a reward model trained on the cluster too, by two
    trainers that share their node's network."""
    policy.apply(manifest("reward", steps=80, trainer={"replicas": 2}, pods=HOST_NETWORK))
    assert policy.until("reward", "Succeeded", timeout=RUN_S)["step"] == 80
    policy.kubectl("delete", "rlhfjob", "reward")
    return policy


def test_trainers_in_two_pods_resume_after_a_death(policy: Jobs) -> None:
    """`check_two_trainers` runs the job; its exported policy is the whole model in one file of weights."""
    saved = workspace(policy) / "runs" / "sft" / "policy"
    assert [each.name for each in saved.glob("*.safetensors")] == ["model.safetensors"]


def check_two_trainers(jobs: Jobs) -> None:
    """A rendezvous between pods and ZeRO-2 across them; after the death of one rank both go on from a checkpoint."""
    jobs.apply(
        manifest(
            "sft",
            steps=200,
            trainer={"replicas": 2, "deepspeed": {"zero_optimization": {"stage": 2}}},
            checkpoint={"everySteps": 20},
        )
    )
    step_reached(jobs, "sft", 21, START_S)
    before = jobs.pods()
    assert before.keys() == {"sft-trainer-0", "sft-trainer-1"}
    kill_ranks = (
        "import os, signal, psutil; [os.kill(p.pid, signal.SIGKILL) for p in psutil.Process(1).children()]"
    )
    where = ("exec", "sft-trainer-1", "-n", JOBS)
    kubectl(jobs.kubeconfig, *where, "--", "python3", "-c", kill_ranks)

    status = jobs.until("sft", "Succeeded", timeout=RUN_S)
    assert (status["step"], status["restarts"]) == (200, 1)
    after = jobs.pods()
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values()), "the pods of one gang start and end together"
    for pod in after:
        assert "resumed from the checkpoint" in jobs.kubectl("logs", pod)
    steps = [line["step"] for line in metrics(jobs, "sft")]
    assert steps == list(range(1, 201)), "no step is lost, and none is told twice"


def ppo(**spec: Any) -> dict[str, Any]:
    store = {"store": "s3://checkpoints/ppo", "everySteps": 5}
    settings = {"steps": MANY_STEPS, "checkpoint": store, "pods": {"secrets": ["seaweedfs"]}}
    return manifest("ppo", **settings, **spec)


def test_ppo_runs_learns_and_survives_all_of_it(models: Jobs) -> None:
    """One run, from apply to delete: columns, logs, who reaches its pods, scale up and down, the operator's death,
    suspend and resume."""
    with models.explained(SYSTEM):
        check_one_run(models)


def check_one_run(jobs: Jobs) -> None:
    jobs.apply(ppo())
    jobs.until("ppo", "Running", timeout=START_S)
    step_reached(jobs, "ppo", 1)
    # The first steps may be made before the kubelet's next look at the generator, every five seconds.
    eventually(
        lambda: jobs.status("ppo")["roles"]["generator"]["ready"] == 1, "the generator counts as ready", 60
    )
    check_columns(jobs)
    check_logs(jobs)
    check_secrets(jobs)
    check_network(jobs, "ppo")

    operators = get(jobs.kubeconfig, "pods", "-n", SYSTEM)["items"]
    before = jobs.pods()
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=2")
    eventually(
        lambda: jobs.status("ppo")["roles"]["generator"]["ready"] == 2, "two generators serve", START_S
    )
    assert before.items() <= jobs.pods().items()
    for pod in operators:
        kubectl(
            jobs.kubeconfig,
            "delete",
            "pod",
            pod["metadata"]["name"],
            "-n",
            SYSTEM,
            "--force",
            "--grace-period=0",
        )
    step_reached(jobs, "ppo", jobs.status("ppo")["step"] + 1)
    assert before.items() <= jobs.pods().items()
    jobs.kubectl("scale", "rlhfjob", "ppo", "--replicas=1")
    eventually(lambda: "ppo-generator-1" not in jobs.pods(), "the second generator has gone")

    jobs.patch("ppo", suspend=True)
    status = jobs.until("ppo", "Suspended", timeout=120)
    assert status["lastCheckpoint"]["step"] == status["step"] > 0
    eventually(lambda: not jobs.pods(), "all pods are given back")
    last = status["step"] + 5
    jobs.patch("ppo", suspend=False, steps=last)
    step_reached(jobs, "ppo", status["step"] + 1, START_S)
    assert "resumed from the checkpoint" in jobs.kubectl("logs", "ppo-trainer-0")

    status = jobs.until("ppo", "Succeeded", timeout=RUN_S)
    assert (status["step"], status["restarts"]) == (last, 0)
    log = jobs.kubectl("logs", "ppo-trainer-0")
    assert token_of(jobs) not in log
    check_reward_rose(jobs, last)

    jobs.kubectl("delete", "rlhfjob", "ppo")
    kinds = "pods,services,configmaps,secrets,networkpolicies"
    eventually(lambda: not jobs.get(kinds, "-l", "rlhf.dev/job=ppo")["items"], "nothing is left", END_S)


def step_reached(jobs: Jobs, name: str, step: int, timeout: float = 180) -> None:
    eventually(lambda: jobs.status(name).get("step", 0) >= step, f"step {step} of {name}", timeout)


def check_columns(jobs: Jobs) -> None:
    header, row = (line.split() for line in jobs.kubectl("get", "rlhfjobs").splitlines())
    shown = dict(zip(header, row, strict=True))
    print(jobs.kubectl("get", "rlhfjobs", "-o", "wide"))
    columns = ("NAME", "PHASE", "GEN", "GENREADY", "RESTARTS")
    assert tuple(shown[column] for column in columns) == ("ppo", "Running", "1", "1", "0")
    assert int(shown["STEP"]) >= 1
    assert float(shown["REWARD"]) is not None
    assert abs(float(shown["KL"])) < 1
    assert int(shown["WEIGHTS"]) >= 1


def check_logs(jobs: Jobs) -> None:
    for role in ("trainer", "generator", "reward", "reference"):
        assert jobs.kubectl("logs", f"ppo-{role}-0", "--tail=5").strip(), role


def check_secrets(jobs: Jobs) -> None:
    """The token is in the Secret and nowhere else."""
    listing = jobs.kubectl("get", "rlhfjobs,pods,configmaps,events,services", "-o", "yaml")
    assert token_of(jobs) not in listing


def token_of(jobs: Jobs) -> str:
    secret = token_name("ppo", jobs.get("rlhfjob", "ppo")["metadata"]["uid"], Role.TRAINER)
    return base64.b64decode(jobs.get("secret", secret)["data"]["token"]).decode()


def check_reward_rose(jobs: Jobs, steps: int) -> None:
    """By the metrics that the trainer wrote to the workspace."""
    rewards = [line["reward_mean"] for line in metrics(jobs, "ppo")]
    print(rewards)
    assert len(rewards) == steps
    assert sum(rewards[-3:]) > sum(rewards[:3]) + 0.5


def metrics(jobs: Jobs, name: str) -> list[dict[str, Any]]:
    """One a step, as the trainer wrote them."""
    lines = (workspace(jobs) / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
