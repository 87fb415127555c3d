"""A model cache in pods of a cluster: an init container fills it from a hub, and the next job finds the model there."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.node import Place
from tests.cluster.packages import cache
from tests.support.hub import Hub, hub
from tests.support.installed import SYSTEM, workspace
from tests.support.kube import eventually
from tests.support.models import tiny_model
from tests.support.operator import Jobs

NAME, WEIGHTS = "team/tiny", "model.safetensors"
CACHE = "/workspace/hub"
START_S, RUN_S = 120.0, 180.0
pytestmark = pytest.mark.timeout(600)


def job(name: str, endpoint: str) -> dict[str, Any]:
    """One trainer, which fine-tunes the hub's model for a step."""
    spec = {
        "algorithm": "sft",
        "steps": 1,
        "model": {"policy": NAME, "dtype": "float32"},
        "data": {
            "train": ["cached.jsonl"],
            "maxPromptLength": 16,
            "maxResponseLength": 16,
            "promptsPerStep": 4,
        },
        "pods": {"modelCache": CACHE},
        "environment": {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"},
    }
    head = {"apiVersion": "rlhf.dev/v1alpha1", "kind": "RLHFJob", "metadata": {"name": name}}
    return {**head, "spec": spec}


def test_a_hubs_model_is_downloaded_by_one_job_and_found_by_the_next(jobs: Jobs, tmp_path: Path) -> None:
    rows = [{"prompt": f"item {i} is", "answer": "good"} for i in range(8)]
    (workspace(jobs) / "cached.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    repository = Hub({NAME: tiny_model(tmp_path, tie=False, seed=0)}, held=(WEIGHTS,), awaited=2)
    # Pods reach no more of this machine than its end of the cable to their node.
    with jobs.explained(SYSTEM), hub(repository, Place(cache() / "cluster").host_address) as served:
        jobs.apply(job("first", served.url))
        filling = "first-trainer-0 fills the model cache: `kubectl logs first-trainer-0 -c models`"
        eventually(lambda: filling in jobs.status("first").get("message", ""), "the job says so", START_S)
        eventually(
            lambda: f"{NAME} (spec.model.policy): " in model_log(jobs, "first"), "the pod says how far"
        )
        eventually(lambda: served.sent[WEIGHTS] == 1, "the weights are asked for, once", START_S)
        served.release.set()
        assert jobs.until("first", "Succeeded", timeout=RUN_S)["step"] == 1
        assert f"{NAME} (spec.model.policy) is in {CACHE} now" in model_log(jobs, "first")
        assert served.sent[WEIGHTS] == 1  # the trainer has it from the volume
    with jobs.explained(SYSTEM):  # the hub is gone
        jobs.apply(job("second", served.url))
        message = f"{NAME} (spec.model.policy) is in {CACHE}\n"
        eventually(lambda: message in model_log(jobs, "second"), "the second job finds it", START_S)
    jobs.kubectl("delete", "rlhfjob", "first", "second")


def model_log(jobs: Jobs, name: str) -> str:
    """By the init container of the job's trainer."""
    return jobs.kubectl("logs", f"{name}-trainer-0", "-c", "models")
