"""The first job of a user: all that it needs is in its file, and its model on a hub, from which an init container fills
the cache, where the next job finds the model."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.node import Place
from tests.cluster.packages import cache
from tests.support.installed import SYSTEM, volume, workspace
from tests.support.kubernetes.kube import eventually
from tests.support.kubernetes.operator import Jobs
from tests.support.servers.hub import Hub, hub
from tests.support.tiny.models import tiny_model

FIRST = Path(__file__).parents[3] / "examples" / "cluster" / "first-job-cpu.yaml"
CLAIM, JOB = yaml.safe_load_all(FIRST.read_text())
NAME, CACHE = JOB["spec"]["model"]["policy"], JOB["spec"]["pods"]["modelCache"]
WEIGHTS = "model.safetensors"
STEPS = 2
ASSIGNED = 1000650000
START_S, RUN_S = 120.0, 360.0
pytestmark = pytest.mark.timeout(900)


def served_by(endpoint: str, document: dict[str, Any]) -> dict[str, Any]:
    """The job with a mirror of the hub, fewer steps, and a user without a name in group 0, as OpenShift assigns one."""
    assigned = {"runAsUser": ASSIGNED, "runAsGroup": 0, "fsGroup": ASSIGNED}
    pods = {**document["spec"]["pods"], "template": {"spec": {"securityContext": assigned}}}
    environment = {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    environment["HF_HUB_DOWNLOAD_TIMEOUT"] = "300"  # of a client, which would ask again for what is held
    spec = {**document["spec"], "steps": STEPS, "env": environment, "pods": pods}
    return {**document, "spec": spec}


def next_job() -> dict[str, Any]:
    """One trainer, which fine-tunes the same model on rows of its manifest."""
    rows = "".join(json.dumps({"prompt": f"item {i} is", "answer": "good"}) + "\n" for i in range(8))
    spec = {
        "algorithm": "sft",
        "model": JOB["spec"]["model"],
        "data": {
            "train": ["rows.jsonl"],
            "maxPromptLength": 16,
            "maxResponseLength": 16,
            "promptsPerStep": 4,
        },
        "pods": JOB["spec"]["pods"],
        "workspace": {"claim": CLAIM["metadata"]["name"], "files": {"rows.jsonl": rows}},
    }
    return {**JOB, "metadata": {"name": "second"}, "spec": spec}


@pytest.fixture
def folder(jobs: Jobs) -> Iterator[Path]:
    """The directory of this machine to which the file's claim is bound."""
    made, name = workspace(jobs) / "first-claim", CLAIM["metadata"]["name"]
    made.mkdir()
    shutil.chown(made, ASSIGNED, 0)
    persistent, _ = volume(made, name)
    jobs.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([persistent, CLAIM]))
    yield made
    jobs.kubectl("delete", "rlhfjob", JOB["metadata"]["name"], "second", "--ignore-not-found")
    jobs.kubectl("delete", "pvc", name, "--wait=false")
    jobs.kubectl("delete", "pv", name, "--wait=false")


def test_a_first_job_brings_all_it_needs_and_the_next_finds_its_model(
    jobs: Jobs, tmp_path: Path, folder: Path
) -> None:
    repository = Hub({NAME: tiny_model(tmp_path, tie=False, seed=0)}, held=(WEIGHTS,), awaited=2)
    name = JOB["metadata"]["name"]
    # Pods reach no more of this machine than its end of the cable to their node.
    with jobs.explained(SYSTEM), hub(repository, Place(cache() / "cluster").host_address) as served:
        jobs.apply(served_by(served.url, JOB))
        filling = re.compile(
            rf"({name}-\w+-0)( \(and . more\))? fills the model cache: `kubectl logs \1 -c models`"
        )
        eventually(lambda: filling.search(jobs.status(name).get("message", "")), "the job says so", START_S)
        eventually(
            lambda: f"{NAME} (spec.model.policy): " in model_log(jobs, name), "the pod says how far", START_S
        )
        eventually(lambda: served.sent[WEIGHTS] == 1, "the weights are asked for, once", START_S)
        served.release.set()
        assert jobs.until(name, "Succeeded", timeout=RUN_S)["step"] == STEPS
        assert f"{NAME} (spec.model.policy) is in {CACHE} now" in model_log(jobs, name)
        assert served.sent[WEIGHTS] == 1  # trainer and generator have it from the volume
    check_files(jobs, folder / "runs" / name)
    with jobs.explained(SYSTEM):  # the hub is gone
        jobs.apply(served_by(served.url, next_job()))
        message = f"{NAME} (spec.model.policy) is in {CACHE}\n"
        eventually(lambda: message in model_log(jobs, "second"), "the second job finds it", START_S)


def check_files(jobs: Jobs, run: Path) -> None:
    """Rows and rewards of the manifest were used, nothing of them was left in the claim, and they go with the job."""
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(0 < step["reward_mean"] < 1 for step in steps), steps
    evaluated = json.loads((run / "evaluation.jsonl").read_text().splitlines()[0])
    assert "Question: 2 + 2 = ?" in json.dumps(evaluated)
    texts = JOB["spec"]["workspace"]["files"]
    assert not [name for name in texts if [*run.parents[1].rglob(name)]]
    (config_map,) = jobs.get("configmaps", "-l", f"rlhf.dev/job={run.name}")["items"]
    assert set(texts.values()) < set(config_map["data"].values())
    jobs.kubectl("delete", "rlhfjob", run.name)
    eventually(lambda: not jobs.get("configmaps", "-l", f"rlhf.dev/job={run.name}")["items"], "files go", 60)


def model_log(jobs: Jobs, name: str) -> str:
    """By the init container of the job's trainer."""
    return jobs.kubectl("logs", f"{name}-trainer-0", "-c", "models")
